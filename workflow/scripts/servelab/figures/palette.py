"""Colours, shapes and dashes of every figure, for light and for dark paper.

A figure is drawn once, in the colours of the light theme. The report replaces each of them by a CSS variable,
so the same drawing follows the reader's theme; PNG and standalone SVG files keep the light colours. Every
series colour has a contrast of at least 4.5 : 1 against its paper, so it can colour a label as well as a
line; no series is told apart by colour alone, each has its own shape and dash too.
"""

# Token → (light, dark). The light values are unique: they are what the report looks for in a drawing.
TOKENS: dict[str, tuple[str, str]] = {
    "ink": ("#1c2024", "#e9e7e2"),
    "muted": ("#575e67", "#a9aeb6"),
    "faint": ("#8b929b", "#7d848d"),
    "grid": ("#e3e5e8", "#34383e"),
    "paper": ("#fefefd", "#16181b"),
    "blue": ("#0b5fa5", "#74b6f2"),
    "orange": ("#b34a00", "#f2a05c"),
    "teal": ("#00715f", "#4fc9b0"),
    "purple": ("#8a3b8f", "#d897df"),
    "ochre": ("#7a5d00", "#dcbb4d"),
    "crimson": ("#b3263e", "#f58a9a"),
    "slate": ("#48546a", "#b3bdce"),
    "cyan": ("#00718c", "#6fd0e8"),
}
SERIES = ("blue", "orange", "teal", "purple", "ochre", "crimson", "slate", "cyan")
SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "triangle-down",
    "cross",
    "triangle-right",
    "triangle-left",
)
DASHES: tuple[list[int], ...] = (
    [1, 0],
    [6, 2],
    [2, 2],
    [8, 2, 2, 2],
    [4, 4],
    [1, 3],
    [10, 3],
    [6, 2, 1, 2, 1, 2],
)
HEAT = ("#f4f6f8", "#cfe0ee", "#9cc3de", "#5f9fc9", "#2a76ad", "#0a4f86", "#042f57")
ON_LIGHT, ON_DARK = (
    "#14181c",
    "#ffffff",
)  # writing in a heat map's cells: the cells keep their colour in both themes

# Settings that many studies share always have the same place in the palette.
_USUAL = {
    "auto": 0, "bf16": 0, "bfloat16": 0, "default": 0, "on": 0, "graphs": 0, "first": 1, "restart": 0,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 3, "int8": 2, "off": 1, "eager": 1, "hit": 2, "miss": 1,
    "measured": 0, "calculated": 1, "p50": 0, "p90": 3, "p95": 1, "p99": 1, "max": 5, "running_mean": 0,
    "waiting_mean": 1,
}  # fmt: skip


def light(token: str) -> str:
    """A token's colour on light paper, as drawn."""
    return TOKENS[token][0]


def usual_place(setting: str) -> int | None:
    """The place in SERIES that a usual setting (fp8, eager, miss, …) always has, None for any other."""
    return _USUAL.get(setting.rsplit("=", 1)[-1].strip().lower())


def themed(drawing: str) -> str:
    """A drawing's text (SVG or Vega JSON) with every token's colour replaced by its CSS variable."""
    for token, (colour, _) in TOKENS.items():
        drawing = drawing.replace(colour, f"var(--{token})").replace(colour.upper(), f"var(--{token})")
    return drawing
