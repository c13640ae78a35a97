// One episode: what was said, its tokens, its turns and what it scored.

const LINE = 100; // characters of JSON that stay on one line
const MODES = [["mask", "loss mask"], ["logprob", "logprob"], ["version", "version"]];

class Detail {
  constructor(episodes) {
    this.episodes = episodes;
    this.box = byId("detail");
    this.mode = "mask";
    this.views = [];
    this.wanted = -1;
    this.box.addEventListener("mousemove", (event) => this.tip(event));
    for (const leave of ["mouseleave", "scroll"]) {
      this.box.addEventListener(leave, () => { byId("tip").hidden = true; }, { capture: true });
    }
  }

  async show(index) {
    this.wanted = index;
    const [body, vocabulary] = await Promise.all([this.episodes.body(index), this.episodes.vocabulary()]);
    if (this.wanted !== index) return; // the person has moved on
    this.views = body.samples.map((sample) => new TokenView(sample, vocabulary, this.episodes.scale));
    byId("tip").hidden = true;
    this.box.replaceChildren(
      ...this.facts(index, body), ...this.conversation(body), ...this.tokens(body), ...this.turns(body), ...this.task(body));
    this.box.dataset.shown = this.episodes.columns.id[index];
    this.box.scrollTop = 0;
    this.color(this.mode);
  }

  facts(index, body) {
    const of = (name) => this.episodes.columns[name][index];
    const status = of("stop") ? `${of("status")} (${of("stop")})` : of("status");
    const facts = [
      ["task", of("task")], ["step", of("step")], ["environment", of("environment")], ["status", status],
      ["reward", of("reward") === null ? `none${body.reason ? `: ${body.reason}` : ""}` : number(of("reward"), 6)],
      ["trained on", of("kept") ? "yes" : "no, dropped"], ["generated tokens", of("length")], ["policy version", of("version")],
    ];
    const parts = Object.entries(body.components).map(([name, value]) => [`reward: ${name}`, number(value, 6)]);
    if (body.label !== null) facts.push(["label", body.label]);
    if (body.step_rewards.length) facts.push(["environment rewards", body.step_rewards.map((value) => number(value)).join(", ")]);
    const pairs = [...facts, ...parts].map(([label, value]) => el("div", null, el("dt", null, label), el("dd", null, shown(String(value)))));
    return [
      el("h3", null, of("id")), el("dl", { class: "facts" }, pairs),
      body.error ? el("pre", { class: "error" }, shown(body.error)) : null,
    ].filter(Boolean);
  }

  conversation(body) {
    let turn = 0;
    const messages = body.messages.map((message, index) => {
      const generated = message.role === "assistant" && index >= body.prompt;
      const role = generated ? `${message.role} · turn ${++turn}` : message.role;
      const { role: _, text, ...extra } = message;
      return el("div", { class: `message ${["assistant", "tool"].includes(message.role) ? message.role : ""}` },
        el("div", { class: "role" }, role), el("div", { class: "text" }, shown(text) || "(empty)"), json(extra));
    });
    return [el("h3", null, "Conversation"), ...messages];
  }

  tokens(body) {
    if (!body.samples.length) return [el("h3", null, "Tokens"), el("p", { class: "empty" }, "No tokens were recorded.")];
    const buttons = MODES.map(([mode, label]) =>
      el("button", { type: "button", "data-mode": mode, onclick: () => this.color(mode) }, label));
    const heading = el("h3", null, "Tokens, coloured by", el("span", { class: "switch" }, buttons));
    const views = this.views.map((view, index) => {
      const title = `${body.samples[index].agent}: ${view.spans.length} tokens, ${view.logprob.filter((value) => value !== undefined).length} trained`;
      return el("div", null, el("small", null, title), view.legend, view.box);
    });
    return [heading, ...views];
  }

  color(mode) {
    this.mode = mode;
    for (const view of this.views) view.color(mode);
    for (const button of this.box.querySelectorAll("[data-mode]")) {
      button.setAttribute("aria-pressed", String(button.dataset.mode === mode));
    }
  }

  turns(body) {
    const names = ["turn", "tokens", "finish", "gen. s", "env. s", "cached", "retries", "temp.", "reward", "environment info"];
    const rows = body.samples.flatMap((sample) => sample.turns.map((turn, index) => [
      index + 1, `${turn.start}–${turn.end}`, turn.finish, number(turn.generate), number(turn.environment), turn.cached,
      turn.retries, number(turn.temperature), number(turn.reward), Object.keys(turn.info).length ? el("code", null, shown(JSON.stringify(turn.info))) : "–",
    ]));
    if (!rows.length) return [];
    const head = el("tr", null, names.map((name) => el("th", null, name)));
    const cells = rows.map((row) => el("tr", null, row.map((cell) => el("td", null, cell instanceof Node ? cell : String(cell)))));
    return [el("h3", null, "Turns"), el("div", { class: "scroll" }, el("table", null, el("thead", null, head), el("tbody", null, cells)))];
  }

  task(body) {
    return [["Task metadata", body.metadata], ["Episode info", body.info]].flatMap(([title, value]) =>
      Object.keys(value).length ? [el("h3", null, title), json(value)] : []);
  }

  tip(event) {
    const span = event.target.closest("[data-at]");
    const tip = byId("tip");
    tip.hidden = !span;
    if (!span) return;
    const view = this.views.find((candidate) => candidate.box.contains(span));
    tip.textContent = view.told(Number(span.dataset.at));
    tip.style.left = `${Math.min(event.clientX + 12, window.innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 16, window.innerHeight - tip.offsetHeight - 8)}px`;
  }
}

function json(value) {
  if (!Object.keys(value).length) return null;
  const line = JSON.stringify(value);
  return el("pre", null, shown(line.length < LINE ? line : JSON.stringify(value, null, 2)));
}
