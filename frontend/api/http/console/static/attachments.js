// Attachments: the images of the next message: chosen, dropped or pasted. They stay in this page until the message is sent.

import { byId, el } from "./dom.js";

/** An image: its file's name, a data URL for the server, and a blob URL that this page shows it by. */
class Picture {
  constructor(file, dataUrl) {
    this.name = file.name || "image";
    this.dataUrl = dataUrl;
    this.shownUrl = URL.createObjectURL(file);
  }

  part() {
    return { type: "image_url", image_url: { url: this.dataUrl } };
  }

  element() {
    return el("img", { src: this.shownUrl, alt: this.name, title: this.name });
  }
}

export class Attachments {
  constructor() {
    this.pictures = [];
    this.taken = false;
    this.list = byId("attachments");
    const [area, files] = [byId("playground"), byId("image-files")];
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

  /** Offer images if one of these models, as /v1/models lists them, reads them. */
  setModels(models) {
    this.taken = models.some((model) => model.input_modalities?.includes("image"));
    byId("attach").hidden = !this.taken;
  }

  /** Mark where files may be dropped. The browser would open a file that is dropped elsewhere. */
  drag(event, over) {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    byId("composer").toggleAttribute("data-drop", over);
  }

  async add(files) {
    if (!files.length) return;
    if (!this.taken) {
      this.show("The model reads no images.");
      return;
    }
    const others = files.filter((file) => !file.type.startsWith("image/"));
    const pictures = files.filter((file) => file.type.startsWith("image/")).map(async (file) => new Picture(file, await dataUrlOf(file)));
    this.pictures.push(...(await Promise.all(pictures)));
    this.show(others.map((file) => `${file.name} is not an image.`).join(" "));
  }

  /** Return the pictures, which are attached no longer. */
  take() {
    const { pictures } = this;
    this.pictures = [];
    this.show();
    return pictures;
  }

  show(note = "") {
    this.list.replaceChildren(...this.pictures.map((picture) => this.tile(picture)), note && el("span", { role: "alert" }, note));
    this.list.hidden = !this.pictures.length && !note;
  }

  tile(picture) {
    const button = el("button", { class: "quiet", type: "button", "aria-label": `Remove ${picture.name}` }, "×");
    button.addEventListener("click", () => {
      this.pictures = this.pictures.filter((each) => each !== picture);
      this.show();
      URL.revokeObjectURL(picture.shownUrl);
      byId("message").focus();
    });
    return el("span", { class: "tile" }, picture.element(), button);
  }
}

function dataUrlOf(file) {
  return new Promise((done, fail) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => done(reader.result));
    reader.addEventListener("error", () => fail(reader.error));
    reader.readAsDataURL(file);
  });
}
