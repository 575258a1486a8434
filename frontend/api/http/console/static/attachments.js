// Attachments: the images, audio and videos of the next message: chosen, dropped or pasted. They stay in this page until the
// message is sent.

import { byId, el } from "./dom.js";

/** How this page names and shows the files of each modality that it can send. */
const KINDS = {
  image: { one: "an image", many: "images", element: (url, name) => el("img", { src: url, alt: name, title: name }) },
  audio: { one: "audio", many: "audio", element: (url, name) => el("audio", { src: url, controls: true, title: name }) },
  video: { one: "a video", many: "videos", element: (url, name) => el("video", { src: url, controls: true, title: name }) },
};

/** A file: its modality and name, a data URL for the server, and a blob URL that this page shows it by. */
class Attachment {
  constructor(file, dataUrl) {
    this.modality = modalityOf(file);
    this.name = file.name || this.modality;
    this.dataUrl = dataUrl;
    this.shownUrl = URL.createObjectURL(file);
  }

  part() {
    const type = `${this.modality}_url`;
    return { type, [type]: { url: this.dataUrl } };
  }

  element() {
    return KINDS[this.modality].element(this.shownUrl, this.name);
  }
}

export class Attachments {
  constructor() {
    this.items = [];
    this.taken = [];
    this.list = byId("attachments");
    const [area, files] = [byId("playground"), byId("files")];
    byId("attach").addEventListener("click", () => files.click());
    files.addEventListener("change", () => {
      this.add([...files.files]);
      files.value = "";  // the same file can be chosen again
    });
    byId("message").addEventListener("paste", (event) => {
      if (event.clipboardData.files.length) event.preventDefault();
      this.add([...event.clipboardData.files]);
    });
    for (const name of ["dragenter", "dragover"]) area.addEventListener(name, (event) => this.drag(event, true));
    area.addEventListener("dragleave", (event) => area.contains(event.relatedTarget) || this.drag(event, false));
    area.addEventListener("drop", (event) => {
      this.drag(event, false);
      this.add([...event.dataTransfer.files]);
    });
  }

  /** Offer the kinds of files that one of these models, as /v1/models lists them, reads. */
  setModels(models) {
    this.taken = Object.keys(KINDS).filter((kind) => models.some((model) => model.input_modalities?.includes(kind)));
    const button = byId("attach");
    button.hidden = !this.taken.length;
    button.title = `Attach ${listed(this.taken.map((kind) => KINDS[kind].many), "and")}; they may be dropped or pasted, too`;
    byId("files").accept = this.taken.map((kind) => `${kind}/*`).join(",");
  }

  /** Mark where files may be dropped. The browser would open a file that is dropped elsewhere. */
  drag(event, over) {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    byId("composer").toggleAttribute("data-drop", over);
  }

  async add(files) {
    if (!files.length) return;
    if (!this.taken.length) {
      this.show(`The model reads no ${KINDS[modalityOf(files[0])]?.many ?? "files"}.`);
      return;
    }
    const isTaken = (file) => this.taken.includes(modalityOf(file));
    const wanted = listed(this.taken.map((kind) => KINDS[kind].one), "or");
    const notes = files.filter((file) => !isTaken(file)).map((file) => `${file.name} is not ${wanted}.`);
    const items = files.filter(isTaken).map(async (file) => new Attachment(file, await dataUrlOf(file)));
    this.items.push(...(await Promise.all(items)));
    this.show(notes.join(" "));
  }

  /** Return the files, which are attached no longer. */
  take() {
    const { items } = this;
    this.items = [];
    this.show();
    return items;
  }

  show(note = "") {
    this.list.replaceChildren(...this.items.map((item) => this.tile(item)), note && el("span", { role: "alert" }, note));
    this.list.hidden = !this.items.length && !note;
  }

  tile(item) {
    const button = el("button", { class: "quiet", type: "button", "aria-label": `Remove ${item.name}` }, "×");
    button.addEventListener("click", () => {
      this.items = this.items.filter((each) => each !== item);
      this.show();
      URL.revokeObjectURL(item.shownUrl);
      byId("message").focus();
    });
    return el("span", { class: "tile" }, item.element(), button);
  }
}

/** Return the first half of a file's type: "image" of image/png. */
function modalityOf(file) {
  return file.type.split("/", 1)[0];
}

function listed(words, last) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} ${last} ${words.at(-1)}`;
}

function dataUrlOf(file) {
  return new Promise((done, fail) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => done(reader.result));
    reader.addEventListener("error", () => fail(reader.error));
    reader.readAsDataURL(file);
  });
}
