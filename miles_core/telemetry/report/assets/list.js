// The list: only the rows in view exist, so ten thousand episodes scroll like ten.

const ROW_HEIGHT = 28; // as in the style sheet
const COLUMNS = [
  ["step", "step"], ["reward", "reward"], ["length", "tokens"], ["status", "status"], ["kept", "kept"], ["task", "task"],
];

class EpisodeList {
  constructor(episodes, choose) {
    this.episodes = episodes;
    this.choose = choose;
    this.shown = [];
    this.current = -1; // index of the episode, not of the row
    this.sort = { column: "step", descending: false };
    this.box = byId("list");
    this.rows = el("div", { class: "rows" });
    this.space = el("div");
    this.box.append(this.space, this.rows);
    this.box.addEventListener("scroll", () => this.draw());
    this.box.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row) this.select(Number(row.dataset.index));
    });
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  show(filter) {
    this.filter = filter;
    this.shown = selected(this.episodes, filter, this.sort);
    this.space.style.height = `${this.shown.length * ROW_HEIGHT}px`;
    this.header();
    this.draw();
    byId("count").textContent = `${this.shown.length.toLocaleString("en")} of ${this.episodes.count.toLocaleString("en")}`;
  }

  header() {
    byId("columns").replaceChildren(...COLUMNS.map(([column, label]) => {
      const sorted = this.sort.column === column;
      const direction = sorted ? (this.sort.descending ? "descending" : "ascending") : null;
      const mark = sorted ? (this.sort.descending ? " ↓" : " ↑") : "";
      return el("button", { type: "button", "aria-sort": direction, "data-column": column, onclick: () => this.sortBy(column) }, label + mark);
    }));
  }

  sortBy(column) {
    const again = this.sort.column === column;
    this.sort = { column, descending: again ? !this.sort.descending : column === "reward" || column === "length" };
    this.box.scrollTop = 0;
    this.show(this.filter);
  }

  draw() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW_HEIGHT) - 5);
    const last = Math.min(this.shown.length, first + Math.ceil(this.box.clientHeight / ROW_HEIGHT) + 10);
    this.rows.style.transform = `translateY(${first * ROW_HEIGHT}px)`;
    this.rows.replaceChildren(...this.shown.slice(first, last).map((index) => this.row(index)));
  }

  row(index) {
    const { step, reward, length, status, kept, task, id } = this.episodes.columns;
    const attributes = { class: "row", role: "option", "data-index": index, "aria-selected": String(index === this.current), title: `${id[index]}  ${task[index]}` };
    const keptWord = kept[index] ? "kept" : "dropped";
    return el("div", attributes,
      el("span", null, String(step[index])), el("span", null, number(reward[index])), el("span", null, String(length[index])),
      el("span", { class: status[index] }, status[index]), el("span", { class: keptWord }, keptWord), el("span", null, task[index]));
  }

  select(index) {
    this.current = index;
    this.reveal();
    this.draw();
    this.choose(index);
  }

  // Moves by rows from the current episode; one that a filter hides (-1) counts as before the first.
  move(rows) {
    if (!this.shown.length) return;
    const at = this.shown.indexOf(this.current);
    const to = Math.min(this.shown.length - 1, Math.max(0, at + rows));
    this.select(this.shown[to]);
  }

  reveal() {
    const top = this.shown.indexOf(this.current) * ROW_HEIGHT;
    if (top < 0) return;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    const bottom = top + ROW_HEIGHT - this.box.clientHeight;
    if (bottom > this.box.scrollTop) this.box.scrollTop = bottom;
  }

  get page() {
    return Math.max(1, Math.floor(this.box.clientHeight / ROW_HEIGHT) - 1);
  }
}
