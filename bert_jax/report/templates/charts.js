"use strict";
const CONFIG = {
  background: null,
  font: "system-ui, sans-serif",
  view: {stroke: null},
  axis: {
    labelColor: "var(--quiet)", titleColor: "var(--quiet)", gridColor: "var(--line)",
    domainColor: "var(--line)", tickColor: "var(--line)", labelFontSize: 12, titleFontSize: 12,
    titleFontWeight: "normal", labelOverlap: true,
  },
  axisX: {grid: false, tickCount: 5},
  axisY: {tickCount: 4},
  legend: {labelColor: "var(--text)", labelFontSize: 13, symbolType: "stroke", symbolSize: 700},
  autosize: {type: "fit-x", contains: "padding"},
};

async function inflate(element) {
  const bytes = Uint8Array.from(atob(element.textContent), letter => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
}

// `ast` interprets Vega's expressions: the content security policy forbids eval.
async function embed(place, spec) {
  const options = {mode: "vega-lite", renderer: "svg", actions: false, ast: true, config: CONFIG};
  const {view} = await vegaEmbed(place, spec, options);
  place.querySelector("svg").setAttribute("aria-hidden", "true"); // `place` has a description
  return view;
}

async function attention(box) {
  const {tokens, spec} = JSON.parse(box.querySelector(".spec").textContent);
  const size = tokens.length;
  const levels = new Uint8Array(await (await inflate(box.querySelector(".levels"))).arrayBuffer());
  const inputs = [...box.querySelectorAll("input")];
  const head = at => levels.subarray(at * size * size, (at + 1) * size * size);
  inputs.forEach((input, at) => {
    const canvas = input.parentElement.querySelector("canvas");
    canvas.width = canvas.height = size;
    const picture = new ImageData(size, size);
    head(at).forEach((level, cell) => picture.data.set([42, 120, 200, level], 4 * cell));
    canvas.getContext("2d").putImageData(picture, 0, 0);
  });
  const view = await embed(box.querySelector(".large"), spec);
  const show = async () => {
    const at = inputs.findIndex(input => input.checked);
    const rows = Array.from(head(at), (level, cell) => {
      const q = Math.floor(cell / size), k = cell % size;
      return {q, k, query: tokens[q], key: tokens[k], weight: (level / 255) ** 2};
    });
    box.querySelector(".chosen").textContent = inputs[at].getAttribute("aria-label");
    await view.data("weights", rows).runAsync();
  };
  box.addEventListener("change", show);
  await show();
}

(async () => {
  const library = document.createElement("script");
  library.textContent = await (await inflate(document.getElementById("vega"))).text();
  document.head.append(library);
  for (const figure of document.querySelectorAll("figure")) {
    const spec = JSON.parse(figure.querySelector(".spec").textContent);
    await embed(figure.querySelector(".chart"), {width: "container", ...spec});
  }
  for (const box of document.querySelectorAll(".attention")) await attention(box);
  document.documentElement.dataset.charts = "ready";
})();
