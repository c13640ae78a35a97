// Wires the browser of episodes: filters, list, detail, keys, and the episode that the address names.

const KEYS = { ArrowDown: () => 1, ArrowRight: () => 1, ArrowUp: () => -1, ArrowLeft: () => -1,
  PageDown: (list) => list.page, PageUp: (list) => -list.page, Home: () => -Infinity, End: () => Infinity };

function onKey(list, event) {
  if (!KEYS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea")) return;
  if (!event.target.closest("#list") && !event.key.endsWith("Left") && !event.key.endsWith("Right")) return;
  event.preventDefault();
  list.move(KEYS[event.key](list));
}

function named(episodes) {
  const match = /^#episode=(.*)$/.exec(location.hash);
  return match ? episodes.columns.id.indexOf(decodeURIComponent(match[1])) : -1;
}

function browse(episodes) {
  const detail = new Detail(episodes);
  const list = new EpisodeList(episodes, (index) => {
    history.replaceState(null, "", `#episode=${encodeURIComponent(episodes.columns.id[index])}`);
    detail.show(index).catch(failed);
  });
  const form = byId("filters");
  options(form.elements.status, episodes.columns.status);
  options(form.elements.environment, episodes.columns.environment);
  form.addEventListener("input", () => list.show(filterOf(form)));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => list.show(filterOf(form))));
  document.addEventListener("keydown", (event) => onKey(list, event));
  list.show(filterOf(form));
  const first = named(episodes);
  if (first < 0) return;
  byId("episodes-section").scrollIntoView();
  list.select(first);
}

async function start() {
  const episodes = await Episodes.open();
  if (episodes.count) browse(episodes);
  else {
    byId("filters").hidden = true;
    byId("browser").replaceWith(el("p", { class: "empty" },
      "There are no episodes: none was written yet, or run.episodes_per_step is 0."));
  }
  document.body.dataset.ready = "true";
}

function failed(error) {
  const old = typeof DecompressionStream === "undefined" ? " This browser is too old: it has no DecompressionStream." : "";
  byId("detail").replaceChildren(el("p", { class: "error" }, `The episodes cannot be shown: ${error}.${old}`));
}

start().catch(failed);
