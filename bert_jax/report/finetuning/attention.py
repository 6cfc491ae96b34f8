"""The attention of every layer and head over one sentence: small maps, and one enlarged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from bert_jax.report.html import Element, clip, element
from bert_jax.report.page import quiet, scrolling
from bert_jax.report.png import data_uri, png

TOKENS: Final = 96  # shown of one example
COLOUR: Final = (42, 120, 200)
CELL: Final = 17  # pixels of one weight in the enlarged map
LETTER: Final = 7.3  # pixels
SHADES: Final = (0, 0.01, 0.1, 0.3, 1)  # explained
NAME: Final = 14  # letters of a token beside the map

# Puts the chosen map in the large frame, and reads the weight below the pointer from the picture
# itself: its opacity is the square root of the weight.
SCRIPT: Final = """
for (const box of document.querySelectorAll(".attention")) {
  const large = box.querySelector(".large"), image = large.querySelector("image");
  const name = box.querySelector(".chosen"), output = box.querySelector("output");
  const [rows, columns] = ["start", "end"].map(
    kind => [...large.querySelectorAll("text[text-anchor=" + kind + "]")]).reverse();
  const tokens = rows.map(row => row.querySelector("title").textContent);
  let levels = null;
  const load = async source => {
    image.setAttribute("href", source);
    const picture = new Image();
    picture.src = source;
    await picture.decode();
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = tokens.length;
    const context = canvas.getContext("2d");
    context.drawImage(picture, 0, 0);
    levels = context.getImageData(0, 0, tokens.length, tokens.length).data;
  };
  box.addEventListener("change", event => {
    const small = event.target.parentElement.querySelector("img");
    name.textContent = small.alt;
    load(small.src);
  });
  image.addEventListener("pointermove", event => {
    if (!levels) return;
    const frame = image.getBoundingClientRect();
    const place = (at, size) =>
      Math.min(tokens.length - 1, Math.max(0, Math.floor(at / size * tokens.length)));
    const column = place(event.clientX - frame.left, frame.width);
    const row = place(event.clientY - frame.top, frame.height);
    const weight = (levels[4 * (row * tokens.length + column) + 3] / 255) ** 2;
    output.textContent = `${tokens[row]} \\u2192 ${tokens[column]}: ${weight.toFixed(2)}`;
    rows.forEach((text, at) => text.classList.toggle("over", at === row));
    columns.forEach((text, at) => text.classList.toggle("over", at === column));
  });
  const chosen = box.querySelector("input:checked");
  if (chosen) load(chosen.parentElement.querySelector("img").src);
}
"""


class AttentionExample(NamedTuple):
    """One text and where every head looks in it."""

    tokens: Sequence[str]
    weights: np.ndarray  # float [layers, heads, tokens, tokens]: layer, head, query, key
    title: str = ""  # what the text is


def attention_example(
    tokens: Sequence[str], weights: np.ndarray, *, title: str = ""
) -> AttentionExample:
    """Returns an example from one row of `attention_maps`, its padding cut off.

    Args:
        tokens: the row's pieces, without padding.
        weights: float [layers, heads, L, L] of that row; L may count padding.
        title: what the text is.

    Raises:
        ValueError: the weights have another shape, or are not those of these tokens: what lies
            beyond the tokens is not 0, or a token's weights do not sum to 1.
    """
    size = len(tokens)
    if weights.ndim != 4 or weights.shape[2] != weights.shape[3] or weights.shape[2] < size:
        raise ValueError(f"found weights {weights.shape} for {size} tokens")
    inside = np.asarray(weights[:, :, :size, :size], np.float32)
    if weights[:, :, :size, size:].any() or np.abs(inside.sum(-1) - 1).max() > 1e-2:
        raise ValueError(f"found weights that are not those of {size} tokens")
    return AttentionExample(tuple(tokens), inside, title)


def attention(example: AttentionExample, *, number_of: int) -> Element:
    """Returns the maps of every head, one of them enlarged with its tokens.

    Args:
        example: from `attention_example`.
        number_of: of this example in the page, from 1.
    """
    tokens = [str(token) for token in example.tokens[:TOKENS]]
    weights = example.weights[:, :, : len(tokens), : len(tokens)]
    remarks = [
        quiet(
            "A row is the token that looks, a column the one looked at. Opacity is the square "
            "root of the weight, so that weak attention is seen too."
        )
    ]
    if len(tokens) < len(example.tokens):
        remarks.append(quiet(f"The first {len(tokens)} of {len(example.tokens)} tokens."))
    pictures = [[_picture(head) for head in layer] for layer in weights]
    alts = [
        [_in_words(tokens, weights[layer, head], layer, head) for head in range(weights.shape[1])]
        for layer in range(weights.shape[0])
    ]
    title = example.title or clip(" ".join(tokens), limit=120)
    return element(
        "div",
        element("h3", title),
        *remarks,
        _scale(),
        scrolling(
            element(
                "fieldset",
                element(
                    "legend",
                    "Choose a head to enlarge; layers run down, heads across",
                    class_="quiet",
                ),
                _grid(pictures, alts, name=f"head-{number_of}"),
            ),
            name=f"Heads: {title}",
        ),
        element("p", element("strong", alts[0][0], class_="chosen")),
        scrolling(_large(tokens, pictures[0][0]), name=f"Enlarged head: {title}"),
        element("output", "Point at the map to read a weight.", class_="quiet"),
        class_="attention",
    )


def _picture(weights: np.ndarray) -> str:
    """The address of a picture of weights from 0 to 1."""
    levels = np.round(255 * np.sqrt(np.clip(weights, 0, 1))).astype(np.uint8)
    return data_uri(png(levels, colour=COLOUR))


def _scale() -> Element:
    """What the shades stand for."""
    swatches = (
        element("li", element("img", src=_picture(np.full((1, 1), weight)), alt=""), f"{weight:g}")
        for weight in SHADES
    )
    return element("ul", *swatches, class_="scale", aria_label="Weights")


def _grid(
    pictures: Sequence[Sequence[str]], alts: Sequence[Sequence[str]], *, name: str
) -> Element:
    """Layers × heads, the first layer on top."""
    head = [element("th", "layer", scope="col")]
    head += [element("th", str(at + 1), scope="col") for at in range(len(pictures[0]))]
    body = []
    for layer, (row, names) in enumerate(zip(pictures, alts, strict=True)):
        cells = []
        for at, (picture, alt) in enumerate(zip(row, names, strict=True)):
            first = layer == 0 and at == 0
            radio = element(
                "input",
                type="radio",
                name=name,
                value=f"{layer + 1}-{at + 1}",
                checked="checked" if first else None,
            )
            image = element("img", src=picture, alt=alt)
            cells.append(element("td", element("label", radio, image, title=alt)))
        body.append(element("tr", element("th", str(layer + 1), scope="row"), *cells))
    return element(
        "table",
        element("thead", element("tr", *head)),
        element("tbody", *body),
        class_="heads",
    )


def _large(tokens: Sequence[str], picture: str) -> Element:
    names = [clip(token, limit=NAME) for token in tokens]
    margin = math.ceil(max(map(len, names)) * LETTER) + 10
    side = CELL * len(tokens)
    drawn = [
        element(
            "image",
            href=picture,
            x=margin,
            y=margin,
            width=side,
            height=side,
            preserveAspectRatio="none",
        ),
        element("rect", x=margin, y=margin, width=side, height=side),
    ]
    for at, (name, token) in enumerate(zip(names, tokens, strict=True)):
        middle = margin + CELL * at + CELL / 2 + 4
        drawn.append(
            element(
                "text", element("title", token), name, x=margin - 6, y=middle, text_anchor="end"
            )
        )
        turned = f"translate({middle} {margin - 6}) rotate(-90)"
        drawn.append(
            element("text", element("title", token), name, transform=turned, text_anchor="start")
        )
    width = margin + side + 2
    return element(
        "svg",
        *drawn,
        class_="large",
        width=width,
        height=width,
        viewBox=f"0 0 {width} {width}",
        role="img",
        aria_label="The chosen head enlarged, its tokens beside and above it",
    )


def _in_words(tokens: Sequence[str], weights: np.ndarray, layer: int, head: int) -> str:
    """What a head does, for those who cannot see its map."""
    size = len(tokens)
    query, key = divmod(int(weights.argmax()), size)
    shares = {
        "itself": float(np.trace(weights)) / size,
        "the token before": float(np.trace(weights, offset=-1)) / size,
        "the token after": float(np.trace(weights, offset=1)) / size,
        f"the first ({clip(tokens[0], limit=NAME)})": float(weights[:, 0].sum()) / size,
        f"the last ({clip(tokens[-1], limit=NAME)})": float(weights[:, -1].sum()) / size,
    }
    kind, share = max(shares.items(), key=lambda item: item[1])
    return (
        f"Layer {layer + 1}, head {head + 1}: {share:.0%} on {kind}; most from "
        f'"{clip(tokens[query], limit=NAME)}" to "{clip(tokens[key], limit=NAME)}" '
        f"({weights[query, key]:.2f})"
    )
