// Builds elements. Texts always become text nodes: what a policy wrote is never parsed as HTML.

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function byId(id) {
  return document.getElementById(id);
}

function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  return typeof value === "number" ? String(Number(value.toPrecision(digits))) : String(value);
}

// Control characters and those that turn the direction of writing get a shape: they could make a text look like another.
function shown(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g, coded);
}

function coded(character) {
  const code = character.charCodeAt(0);
  return code < 32 ? String.fromCharCode(0x2400 + code) : `⟨${code.toString(16).toUpperCase()}⟩`;
}
