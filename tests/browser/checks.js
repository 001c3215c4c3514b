// What a page must hold for everybody, asked in the browser itself.

/* CSS pixels by which the page is wider than its window. */
function overflow() {
  return Math.max(0, document.documentElement.scrollWidth - window.innerWidth);
}

/* Fields, buttons and links that a screen reader could not name. */
function unnamed() {
  const named = (one) =>
    one.getAttribute("aria-label") ||
    one.textContent.trim() ||
    [...(one.labels || [])].some((label) => label.textContent.trim());
  return [...document.querySelectorAll("input, select, textarea, button, a")]
    .filter((one) => one.type !== "hidden" && one.getClientRects().length && !named(one))
    .map((one) => one.outerHTML);
}

/* Texts with less contrast than 4.5 to 1 (WCAG 2, AA). */
function pale() {
  const box = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    box.clearRect(0, 0, 1, 1);
    box.fillStyle = colour;
    box.fillRect(0, 0, 1, 1);
    return [...box.getImageData(0, 0, 1, 1).data];
  };
  const linear = (value) => (value <= 10 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([red, green, blue]) =>
    0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = rgba(getComputedStyle(node).backgroundColor);
      if (colour[3] > 200) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll("main *, header *")) {
    const hasText = [...node.childNodes].some((one) => one.nodeType === 3 && one.textContent.trim());
    if (!hasText || !node.getClientRects().length || node.disabled) continue;
    const [a, b] = [light(rgba(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(1)} ${node.tagName}: ${node.textContent.trim()}`);
  }
  return found;
}
