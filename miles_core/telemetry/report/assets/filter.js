// Which episodes are listed, and in which order.

function options(select, values) {
  for (const value of [...new Set(values)].sort()) select.append(el("option", { value }, value || "(none)"));
}

function filterOf(form) {
  const read = (name) => form.elements[name].value;
  const bound = (name, otherwise) => (read(name) === "" ? otherwise : Number(read(name)));
  return {
    text: read("text").trim().toLowerCase(),
    status: read("status"),
    kept: read("kept"),
    environment: read("environment"),
    steps: [bound("step-min", -Infinity), bound("step-max", Infinity)],
    rewards: [bound("reward-min", -Infinity), bound("reward-max", Infinity)],
    scored: read("reward-min") !== "" || read("reward-max") !== "",
  };
}

function passes(columns, index, filter) {
  const { step, reward, status, kept, environment, task, id } = columns;
  if (filter.status && status[index] !== filter.status) return false;
  if (filter.kept && String(kept[index]) !== filter.kept) return false;
  if (filter.environment && environment[index] !== filter.environment) return false;
  if (step[index] < filter.steps[0] || step[index] > filter.steps[1]) return false;
  if (filter.scored && reward[index] === null) return false;
  if (filter.scored && (reward[index] < filter.rewards[0] || reward[index] > filter.rewards[1])) return false;
  return !filter.text || task[index].toLowerCase().includes(filter.text) || id[index].toLowerCase().includes(filter.text);
}

// Indexes of the episodes that pass. Episodes without a value in the sorted column come last, ties keep their order.
function selected(episodes, filter, sort) {
  const found = [];
  for (let index = 0; index < episodes.count; index++) {
    if (passes(episodes.columns, index, filter)) found.push(index);
  }
  const column = episodes.columns[sort.column];
  const sign = sort.descending ? -1 : 1;
  return found.sort((a, b) => {
    if (column[a] === column[b]) return a - b;
    if (column[a] === null || column[b] === null) return column[a] === null ? 1 : -1;
    return column[a] < column[b] ? -sign : sign;
  });
}
