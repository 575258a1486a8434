// Markdown: the text of a model as elements. marked parses it, el() makes elements and text nodes of what it found, and DOMPurify
// removes each tag, attribute and address that is not listed here. No string becomes markup: HTML stays text, pictures become links.

import "./vendor/purify.min.js";
import { lexer } from "./vendor/marked.esm.js";
import { copyButton } from "./clipboard.js";
import { el } from "./dom.js";

const LISTED = {
  IN_PLACE: true,
  // The page's policy allows no Trusted Types policy. None is needed, since elements are checked, not strings.
  TRUSTED_TYPES_POLICY: null,
  ALLOWED_TAGS: [
    ...["div", "p", "h3", "blockquote", "ul", "ol", "li", "pre", "code", "hr", "br", "strong", "em", "s", "a"],
    ...["table", "thead", "tbody", "tr", "th", "td"],
  ],
  ALLOWED_ATTR: ["class", "href", "title", "target", "rel", "start", "tabindex", "role", "aria-label"],
  ADD_URI_SAFE_ATTR: ["target", "rel", "start", "tabindex"],
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
};
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };
const MAX_DEPTH = 16;
// Markdown can be written so that parsing takes quadratic time: such a text is shown as it is.
const MAX_PARSE_MS = 500;
const WAIT_FACTOR = 4;

export class Markdown {
  /** element: takes the blocks. */
  constructor(element) {
    this.element = element;
    this.blocks = [];
    this.shownAt = this.costMs = 0;
    this.isPlain = false;
  }

  /** Show a text, most often the one before with more behind it; if parsing is slow, only now and then, and `isLast` always. */
  show(text, isLast) {
    const begin = performance.now();
    if (!isLast && begin - this.shownAt < WAIT_FACTOR * this.costMs) return;
    if (this.isPlain) this.element.replaceChildren(plain(text));
    else this.showBlocks(blocksOf(text));
    this.shownAt = performance.now();
    this.costMs = this.shownAt - begin;
    this.isPlain ||= this.costMs > MAX_PARSE_MS;
  }

  /** Keep the blocks that are as before: a reader may have selected text in them. */
  showBlocks(tokens) {
    const changed = tokens.findIndex((token, place) => token.raw !== this.blocks[place]?.raw);
    const kept = changed < 0 ? tokens.length : changed;
    for (const { node } of this.blocks.splice(kept)) node.remove();
    for (const token of tokens.slice(kept)) {
      const node = elementOf(token);
      this.element.append(node);
      this.blocks.push({ raw: token.raw, node });
    }
  }
}

function blocksOf(text) {
  try {
    return lexer(text, { gfm: true });
  } catch {
    return [{ type: "plain", raw: text }]; // nested too deeply for the parser
  }
}

function elementOf(token) {
  const node = el("div", {}, ...nodesOf([token], 0));
  window.DOMPurify.sanitize(node, LISTED);
  for (const code of node.querySelectorAll("pre")) code.append(copyButton(() => code.firstChild.textContent));
  return node;
}

const plain = (text) => el("div", { class: "plain" }, text);

function nodesOf(tokens, depth) {
  if (depth > MAX_DEPTH) return [tokens.map((token) => token.raw).join("")];
  return tokens.flatMap((token) => (MAKERS[token.type] ?? ((other) => other.raw))(token, (inner) => nodesOf(inner ?? [], depth + 1)));
}

/** By the type of a token: its nodes. What is not here is shown as it was written, HTML for example. */
const MAKERS = {
  plain: ({ raw }) => plain(raw),
  space: () => [],
  def: () => [],
  hr: () => el("hr"),
  br: () => el("br"),
  checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  escape: ({ text }) => text,
  text: ({ text, tokens }, inner) => (tokens ? inner(tokens) : decoded(text)),
  paragraph: ({ tokens }, inner) => el("p", {}, ...inner(tokens)),
  heading: ({ tokens, depth }, inner) => el("h3", { class: `depth-${depth}` }, ...inner(tokens)),
  blockquote: ({ tokens }, inner) => el("blockquote", {}, ...inner(tokens)),
  strong: ({ tokens }, inner) => el("strong", {}, ...inner(tokens)),
  em: ({ tokens }, inner) => el("em", {}, ...inner(tokens)),
  del: ({ tokens }, inner) => el("s", {}, ...inner(tokens)),
  codespan: ({ text }) => el("code", {}, text),
  code: ({ text, lang }) => el("pre", { tabindex: 0, role: "region", "aria-label": lang ? `Code: ${lang}` : "Code" }, el("code", {}, text)),
  list: ({ items, ordered, start }, inner) =>
    el(ordered ? "ol" : "ul", { start: ordered && start !== 1 ? start : null }, ...items.map((item) => el("li", {}, ...inner(item.tokens)))),
  table: ({ header, rows }, inner) =>
    el("div", { class: "table", tabindex: 0, role: "region", "aria-label": "Table" }, tableOf(header, rows, inner)),
  link: ({ href, title, tokens }, inner) => linkTo(href, title, inner(tokens)),
  image: ({ href, title, text }) => linkTo(href, title, [`🖼 ${text || href}`]),
};

function tableOf(header, rows, inner) {
  const cellOf = (tag) => (cell) => el(tag, { class: cell.align }, ...inner(cell.tokens));
  const body = rows.map((row) => el("tr", {}, ...row.map(cellOf("td"))));
  return el("table", {}, el("thead", {}, el("tr", {}, ...header.map(cellOf("th")))), el("tbody", {}, ...body));
}

/** The address is shown when the link is pointed at: a text may lie about it. */
function linkTo(href, title, children) {
  return el("a", { href, title: title ? `${title} (${href})` : href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}

function decoded(text) {
  return text.replace(/&(?:(amp|lt|gt|quot|apos|nbsp)|#(\d{1,6})|#[xX]([\da-fA-F]{1,5}));/g, (_, name, decimal, hex) =>
    name ? ENTITIES[name] : String.fromCodePoint(decimal ? Number(decimal) : parseInt(hex, 16)),
  );
}
