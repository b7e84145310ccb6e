"""HTML pages of sections, with plots beside the page or in it: the run's report and the replay's are such pages."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from matplotlib.figure import Figure
from PIL import Image, UnidentifiedImageError

FORMATS = ((b"\x89PNG", "png"), (b"\xff\xd8", "jpeg"), (b"GIF8", "gif"))
PAGE = jinja2.Environment(autoescape=True, trim_blocks=True).from_string("""\
<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1"><title>{{ title }}</title><style>
:root{color-scheme:light}*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;color:#1c2430;background:#fff;max-width:72rem;margin:0 auto;padding:1rem}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}h2{font-size:1.15rem;margin:2rem 0 .5rem}
p{margin:.3rem 0 .8rem;max-width:46rem}.note{color:#5a6675;font-size:.9rem}img{max-width:100%;height:auto;display:block}
.pair{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr));align-items:start}
.scroll{overflow-x:auto}.scroll>img{min-width:42rem;width:100%;max-width:none}
.cards{display:grid;gap:.9rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,11.5rem),1fr))}
figure.card{margin:0;border:1px solid #d8dee6;border-radius:8px;overflow:hidden;background:#fff}
.card img{width:100%}.card figcaption{padding:.5rem .6rem .6rem;font-size:.88rem;line-height:1.35}
.card .bare{background:#f0f2f5;color:#5a6675;padding:2rem .6rem;text-align:center}
.card b{display:block;font-size:.98rem}.card small{display:block;color:#5a6675;margin-top:.3rem}
table{border-collapse:collapse;font-size:.92rem}td{padding:.28rem .8rem .28rem 0;text-align:left;vertical-align:top;
border-bottom:1px solid #e6eaef}td+td{font-variant-numeric:tabular-nums}
pre{margin:.3rem 0;padding:.8rem;background:#f0f2f5;font-size:.85rem}
</style><h1>{{ title }}</h1>
{% for line in lead %}
<p class="note">{{ line }}</p>
{% endfor %}
{% for section in sections %}
<h2>{{ section.title }}</h2>
{% if section.note %}
<p class="note">{{ section.note }}</p>
{% endif %}
{% if section.text %}
<div class="scroll"><pre>{{ section.text }}</pre></div>
{% endif %}
{% if section.plots %}
<div class="{{ 'pair' if section.plots | length > 1 else 'scroll' }}">
{% for source, description in section.plots %}
<img src="{{ source }}" alt="{{ description }}">
{% endfor %}
</div>
{% endif %}
{% if section.rows %}
<div class="scroll"><table>
{% for row in section.rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</table></div>
{% endif %}
{% if section.cards %}
<div class="cards">
{% for card in section.cards %}
<figure class="card">
{% if card.image %}
<img src="{{ card.image }}" alt="{{ card.title }}">
{% else %}
<div class="bare">no frame</div>
{% endif %}
<figcaption><b>{{ card.title }}</b>{{ card.text }}<small>{{ card.detail }}</small></figcaption></figure>
{% endfor %}
</div>
{% endif %}
{% if section.lines or section.links %}
<ul>
{% for line in section.lines %}
<li>{{ line }}</li>
{% endfor %}
{% for target, name, description in section.links %}
<li><a href="{{ target }}">{{ name }}</a>: {{ description }}</li>
{% endfor %}
</ul>
{% endif %}
{% endfor %}
</html>
""")


@dataclass(frozen=True)
class Card:
    """A small image with its caption. `image`: a source as `embedded` returns it, empty for none."""

    image: str
    title: str
    text: str
    detail: str = ""


@dataclass(frozen=True)
class Section:
    """A part of a page; what is empty is left out, and all text is plain.

    text: aligned lines, shown as they are. plots: (source, description), a source being a file beside the page or
    `embedded` data; several stand side by side. rows: cells of a table. lines: a list. links: (target, name,
    description), targets relative to the page.
    """

    title: str
    note: str = ""
    text: str = ""
    plots: Sequence[tuple[str, str]] = ()
    rows: Sequence[Sequence[str]] = ()
    cards: Sequence[Card] = ()
    lines: Sequence[str] = ()
    links: Sequence[tuple[str, str, str]] = ()


def write_page(path: Path, title: str, sections: Sequence[Section], lead: Sequence[str] = ()) -> Path:
    """Write a page and return its path; `lead` are the lines under the title. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PAGE.render(title=title, lead=lead, sections=sections), encoding="utf-8")
    return path


def png(figure: Figure, dpi: int = 110) -> bytes:
    """Return a figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=dpi, bbox_inches="tight", facecolor="white")
    return buffer.getvalue()


def embedded(data: bytes) -> str:
    """Return a PNG, JPEG or GIF as the source of an image that the page carries. Raises ValueError for other data."""
    kind = next((name for start, name in FORMATS if data.startswith(start)), None)
    if kind is None:
        raise ValueError("the data is neither PNG, JPEG nor GIF")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def thumbnail(data: bytes | None, width: int = 360, quality: int = 82) -> str:
    """Return a camera frame at most `width` pixels wide as an image's source; empty if it is no image."""
    try:
        image = Image.open(io.BytesIO(data or b""))
        if image.width <= width:
            image.load()
            return embedded(data or b"")
        small = image.convert("RGB").resize((width, round(image.height * width / image.width)), Image.Resampling.BOX)
    except (UnidentifiedImageError, OSError, ValueError):
        return ""
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=quality)
    return embedded(buffer.getvalue())
