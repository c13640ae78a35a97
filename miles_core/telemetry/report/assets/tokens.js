// The exact tokens of a sample, each coloured by loss mask, logprob or policy version.

const UNLIKELY = 5; // nats at which the colour of a logprob is full
const VERSION_HUES = [215, 25, 140, 330, 265, 50, 185, 0];

class TokenView {
  constructor(sample, vocabulary, scale) {
    this.sample = sample;
    this.vocabulary = vocabulary;
    this.named = Object.keys(vocabulary.texts).length > 0;
    this.scale = scale;
    this.trained = this.spread(sample.trained.map(([start, end]) => [true, start, end]));
    this.version = this.spread(sample.versions);
    this.turn = this.spread(sample.turns.map((turn, index) => [index + 1, turn.start, turn.end]));
    this.versions = [...new Set(sample.versions.map(([version]) => version))].sort((a, b) => a - b);
    this.logprob = new Array(sample.tokens.length).fill(undefined);
    let next = 0;
    for (const [start, end] of sample.trained) {
      for (let at = start; at < end; at++) this.logprob[at] = sample.logprobs[next++];
    }
    this.legend = el("div", { class: "legend" });
    this.box = el("div", { class: `token-view mono${this.named ? "" : " ids"}` });
    this.spans = sample.tokens.map((_, at) => this.span(at));
    this.box.append(...this.spans);
  }

  spread(runs) {
    const values = new Array(this.sample.tokens.length).fill(undefined);
    for (const [value, start, end] of runs) values.fill(value, start, end);
    return values;
  }

  span(at) {
    const id = this.sample.tokens[at];
    const part = this.vocabulary.raw[id];
    const kind = [this.trained[at] ? "trained" : "prompt", part === undefined ? "" : "part"].join(" ").trim();
    return el("span", { class: kind, "data-at": at }, this.spelled(id));
  }

  spelled(id) {
    const { texts, raw } = this.vocabulary;
    if (raw[id] !== undefined) return raw[id].toUpperCase().replace(/(..)(?=.)/g, "$1 ");
    if (texts[id] === undefined) return this.named ? `[${id}]` : String(id);
    return visible(texts[id]);
  }

  color(mode) {
    this.spans.forEach((span, at) => {
      span.style.background = this.trained[at] ? this.background(mode, at) : "";
    });
    this.legend.replaceChildren(...this.explained(mode));
  }

  background(mode, at) {
    if (mode === "mask") return "var(--trained)";
    if (mode === "version") return hue(this.versions.indexOf(this.version[at]));
    return unlikely(this.logprob[at], this.scale);
  }

  explained(mode) {
    const swatch = (background, label) => el("span", null, el("i", { style: `background: ${background}` }), label);
    if (mode === "mask") return [swatch("var(--trained)", "in the loss"), el("span", null, "grey: prompt, not trained")];
    if (mode === "version") return this.versions.map((version, index) => swatch(hue(index), `version ${version}`));
    const gradient = "linear-gradient(to right, rgba(var(--unlikely), 0), rgba(var(--unlikely), 0.8))";
    return [el("span", null, "logprob 0", el("i", { class: "scale", style: `background: ${gradient}` }), `−${UNLIKELY} or less`)];
  }

  told(at) {
    const { tokens } = this.sample;
    const logprob = this.logprob[at];
    const lines = [`token ${at}   id ${tokens[at]}   ${JSON.stringify(this.spelled(tokens[at]))}`];
    if (!this.trained[at]) return [...lines, "not trained"].join("\n");
    const value = logprob === null ? "not finite" : number(logprob / this.scale, 5);
    const chance = logprob === null ? "" : ` (probability ${number(Math.exp(logprob / this.scale), 3)})`;
    return [...lines, `logprob ${value}${chance}`, `version ${this.version[at]}   turn ${this.turn[at] ?? "–"}`].join("\n");
  }
}

function unlikely(logprob, scale) {
  const share = logprob === null ? 1 : Math.min(1, Math.max(0, -logprob / scale / UNLIKELY));
  return `rgba(var(--unlikely), ${(0.8 * share).toFixed(3)})`;
}

function hue(index) {
  return `hsla(${VERSION_HUES[index % VERSION_HUES.length]}, 75%, 55%, 0.35)`;
}

// Line ends and other characters without a shape get one; a line end breaks the line as well.
function visible(text) {
  const invisible = text.replace(/[\t\u200b-\u200f\ufeff]/g, (character) => (character === "\t" ? "→\t" : coded(character)));
  return shown(invisible).replaceAll("\n", "⏎\n") || "∅";
}
