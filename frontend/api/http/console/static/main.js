// The page: what the server tells goes to the overview, the playground talks to it, and both ask for a key where one is needed.

import { Cache } from "./cache.js";
import { CACHE, Charts, LOAD } from "./charts.js";
import { byId, setText } from "./dom.js";
import { Feed } from "./feed.js";
import { History } from "./history.js";
import { KeyDialog } from "./key_dialog.js";
import { Playground } from "./playground.js";
import { Requests } from "./requests.js";
import { Topology } from "./topology.js";

const STATES = { live: "Live", lost: "Reconnecting", key: "Key needed", connecting: "Connecting" };
const VIEWS = ["overview", "cache", "playground"];

const history = new History();
const charts = [new Charts(byId("charts"), LOAD), new Charts(byId("cache-charts"), CACHE)];
const cache = new Cache(byId("caches"));
const topology = new Topology(byId("topology"), byId("topology-news"));
const requests = new Requests(byId("request-rows"), byId("requests-empty"));

const keyDialog = new KeyDialog(() => {
  feed.start();
  playground.loadModels();
});
const playground = new Playground((error) => keyDialog.open(error));
const feed = new Feed(onSnapshot, onState);

function onSnapshot(snapshot, isFirst) {
  setText(byId("model"), snapshot.model);
  byId("traces").hidden = !snapshot.traces_url;
  if (snapshot.traces_url) byId("traces").href = snapshot.traces_url;
  history.add(snapshot.time, snapshot.load, snapshot.topology.engines);
  topology.update(snapshot.topology, snapshot.time);
  for (const each of charts) each.update(history);
  cache.update(snapshot.topology.engines);
  requests.update(snapshot.requests, snapshot.requests_refused, snapshot.model, isFirst);
}

function onState(state, error) {
  byId("link").dataset.state = state;
  setText(byId("link").lastChild, STATES[state]);
  if (state === "lost") topology.lose(Date.now() / 1000);
  if (state === "key") keyDialog.open(error);
}

function showView() {
  const view = VIEWS.find((name) => `#${name}` === location.hash) ?? VIEWS[0];
  for (const name of VIEWS) byId(name).hidden = name !== view;
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  // Behind what the browser does for the fragment by itself.
  if (view !== "playground") return;
  playground.loadModels();  // adapters come and go
  setTimeout(() => playground.focus());
}

addEventListener("hashchange", showView);
addEventListener("load", showView);
byId("key-button").addEventListener("click", () => keyDialog.open());
showView();
feed.start();
