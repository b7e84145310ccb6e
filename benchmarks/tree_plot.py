"""One verification of a real pair as a plot: the token tree before and after an early token, and after the commit.

    python -m benchmarks.tree_plot --out docs/decoding_tree.png

The draft grows a tree and sends its best part; the target checks it layer by layer; in the time of a layer the draft
makes `--forwards` forwards. The plot shows the first verification in which an early token moves the edge from a place
that it took for likelier to the one where the verdict then lands.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

from cloud_verifier.config import ServerConfig
from cloud_verifier.engine import VlmEngine, find_exits
from cloud_verifier.step import StepState
from cloud_verifier.work import VerifyRow
from edge_drafter import DecodingStats, DraftingConfig
from edge_drafter.answer import Answer
from edge_drafter.controller import Controller
from edge_drafter.speculator import Speculator
from edge_drafter.tree import Origin, TokenTree
from evaluation.experiment.command import command_line, main_of
from evaluation.experiment.questions import questions
from evaluation.experiment.run import Question
from evaluation.setting import add_pair
from speculation.predictor import AUTO, Predictor, find
from speculation.vlm.load import load_vlm
from speculation.vlm.session import VlmSession
from speculation.wire import ROOT, BeginStep, Commit, Draft, EarlyTokens

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

COLOURS = {Origin.COMMITTED: "#333333", Origin.DRAFT: "#4c78a8", Origin.EARLY: "#54a24b", Origin.NGRAM: "#f58518"}
SHOWN, LEAST = 20, 0.002
"""Nodes of one tree that are plotted: the likeliest, down to a reach."""
CAPACITY = 1024
MAX_TOKENS = 64


@dataclass(frozen=True)
class Node:
    """One token of a plot; `parent` is its place in the list, -1 for the root."""

    text: str
    parent: int
    reach: float
    origin: Origin
    sent: bool


@dataclass(frozen=True)
class Panel:
    """One state of the tree; `mark` is the node that the title is about."""

    title: str
    nodes: list[Node]
    mark: int


class Pair:
    """A draft and a target in one process, taking turns without any link."""

    def __init__(self, target: Path, draft: Path) -> None:
        """Raises ModelFolderError or ValueError for folders that cannot be used."""
        config = ServerConfig(target)
        self.target = load_vlm(target, threads=1)
        self.draft = load_vlm(draft, threads=1)
        self.engine = VlmEngine(self.target, 1, CAPACITY, find_exits(config, self.target))
        self.session = VlmSession(self.draft, CAPACITY)
        folder = find(AUTO, self.draft.folder)
        self.predictor = Predictor.load(folder, self.draft.fingerprint) if folder is not None else None

    def panels(self, question: Question, forwards: int) -> Iterator[list[Panel]]:
        """Yield the three panels of every verification in which an early token was new and right."""
        eos = self.target.eos
        answer = Answer(question.prompt, question.jpeg, eos, MAX_TOKENS)
        state = StepState(BeginStep(1, question.prompt, question.jpeg, max_tokens=MAX_TOKENS), eos)
        config = DraftingConfig.of("full", ahead=False, ngrams=False)
        speculator = Speculator(
            self.session, answer, eos, config, float, 64, DecodingStats(), Controller(None), self.predictor
        )
        self.session.begin(question.prompt, question.jpeg)
        self.engine.prefill(0, self.engine.prepare(question.prompt, question.jpeg), [], MAX_TOKENS)
        while not answer.done:
            while speculator.due() is None and (nodes := speculator.next_nodes()):
                speculator.grow(nodes)
            draft = speculator.launch(speculator.root, 1)
            state.offer(draft)
            found = self._verify(speculator, state, draft, answer, forwards)
            if len(found) == 3:
                yield found

    def _verify(
        self, speculator: Speculator, state: StepState, draft: Draft, answer: Answer, forwards: int
    ) -> list[Panel]:
        work = state.take()
        panels: list[Panel] = []
        last = self.target.num_layers - 1
        for output in self.engine.verify([VerifyRow(0, work.tokens, work.parents)]):
            verdict = output.verdicts.get(0)
            if verdict is not None and output.layer < last:
                node = verdict.path[-1] if verdict.path else ROOT
                start = state.position + len(verdict.path)
                confidence = min(1.0, verdict.confidence)
                before = self._panel(speculator, "1  a draft is being verified", speculator.root)
                known = len(speculator.tree)
                early = EarlyTokens(1, draft.round, start, node, verdict.token, output.layer, confidence)
                taken = speculator.hear(early)
                verdict_now = (verdict.path, verdict.token)
                word = f"'{self._word(verdict.token)}' (layer {output.layer}: {confidence:.2f}"
                if taken and (len(speculator.tree) > known or not panels):
                    panels = [before, Panel(f"2  an exit predicts {word}", [], -1)]
                    claim = verdict_now
                elif taken and verdict_now == claim:
                    panels[1] = Panel(f"{panels[1].title}, layer {output.layer}: {confidence:.2f}", [], -1)
            for _ in range(forwards):
                if nodes := speculator.next_nodes():
                    speculator.grow(nodes)
            if len(panels) == 2 and output.layer < last:
                panels[1] = self._panel(speculator, panels[1].title, self._landing(speculator, claim[0], claim[1]))
        final = output.verdicts[0]
        progress = state.accept(work, final.path, final.token)
        self.engine.keep(0, final.path, final.token)
        commit = Commit(1, draft.round, progress.start, list(progress.tokens), progress.digest, progress.done)
        for each, tokens in answer.take(commit):
            landing = speculator.land(each, tokens, 0.0)
        if answer.done or len(panels) != 2 or claim != (final.path, final.token) or landing.value != "hit":
            return []
        words = " ".join(self._word(token) for token in progress.tokens)
        title = f"3  the commit: '{words}'. What stood behind its last token is the next draft"
        panels[1] = Panel(f"{panels[1].title}), and the draft goes on there", panels[1].nodes, panels[1].mark)
        return [*panels, self._panel(speculator, title, speculator.root)]

    def _landing(self, speculator: Speculator, path: Sequence[int], token: int) -> int:
        flight = speculator.flight
        anchor = flight.nodes[path[-1]] if flight is not None and path else speculator.root
        return speculator.tree[anchor].children[token]

    def _panel(self, speculator: Speculator, title: str, mark: int) -> Panel:
        tree, flight = speculator.tree, speculator.flight
        sent = set(flight.nodes) if flight is not None else set()
        keep = [speculator.root, *tree.best_nodes(speculator.root, SHOWN, 64, LEAST, frozenset())]
        if mark not in keep:
            keep = [*keep, *(node for node in tree.path_to(mark) if node not in keep)]
        places = {node: place for place, node in enumerate(keep)}
        nodes = [self._node(tree, node, places, node in sent) for node in keep]
        return Panel(title, nodes, places[mark])

    def _node(self, tree: TokenTree, node: int, places: dict[int, int], sent: bool) -> Node:
        content = tree[node]
        parent = -1 if content.parent is None else places[content.parent]
        origin = Origin.EARLY if content.layers else content.origin
        word = self._word(content.token) if content.token >= 0 else "(prompt)"
        return Node(word, parent, content.reach, Origin.COMMITTED if parent < 0 else origin, sent)

    def _word(self, token: int) -> str:
        return str(self.target.tokenizer.decode([token])).strip(" ").replace("\n", "↵") or "␣"


def plot(panels: Sequence[Panel]) -> Figure:
    """Return the panels below each other: answer positions to the right, one row a leaf, the likeliest on top."""
    rows = [sum(1 for place in range(len(p.nodes)) if all(n.parent != place for n in p.nodes)) for p in panels]
    figure = Figure(figsize=(13, 1.2 + sum(0.9 + 0.3 * count for count in rows)), layout="constrained")
    for axes, panel in zip(figure.subplots(len(panels), 1, height_ratios=[2 + n for n in rows]), panels, strict=True):
        _plot_tree(axes, panel)
    legend = [
        Patch(facecolor=COLOURS[origin], label=label)
        for origin, label in (
            (Origin.COMMITTED, "committed"), (Origin.DRAFT, "the draft's"), (Origin.EARLY, "predicted by an exit"),
        )
    ]  # fmt: skip
    legend.append(Patch(facecolor="white", edgecolor="black", linewidth=2.0, label="framed: sent, being verified"))
    figure.legend(handles=legend, loc="outside lower center", ncols=len(legend), frameon=False)
    return figure


def _plot_tree(axes: Axes, panel: Panel) -> None:
    nodes = panel.nodes
    children: dict[int, list[int]] = {place: [] for place in range(-1, len(nodes))}
    for place, node in enumerate(nodes):
        children[node.parent].append(place)
    heights: dict[int, float] = {}
    rows = iter(range(len(nodes)))

    def place_at(node: int) -> float:
        below = [place_at(child) for child in sorted(children[node], key=lambda c: -nodes[c].reach)]
        heights[node] = below[0] if below else float(next(rows))
        return heights[node]

    place_at(0)
    depths = [0] * len(nodes)
    for place, node in enumerate(nodes):
        if node.parent >= 0:
            depths[place] = depths[node.parent] + 1
    for place, node in enumerate(nodes):
        x, y = depths[place], heights[place]
        if node.parent >= 0:
            axes.plot([x - 1, x - 0.5, x], [heights[node.parent], y, y], color="#aaaaaa", linewidth=1, zorder=1)
        axes.text(
            x, y, f"{node.text}  {node.reach:.2f}" if place else node.text, ha="center", va="center", fontsize=8,
            color="white" if node.reach > 0.45 or place == 0 else "black", zorder=2,
            bbox={"boxstyle": "round,pad=0.25", "facecolor": _faded(COLOURS[node.origin], node.reach),
                  "edgecolor": "black" if node.sent else "#cccccc", "linewidth": 1.8 if node.sent else 0.5},
        )  # fmt: skip
        if place == panel.mark and place:
            axes.annotate("", (x, y - 0.3), (x, y - 0.8), arrowprops={"arrowstyle": "-|>", "color": "#d62728"})
    axes.set_xlim(-0.6, 9.0)
    axes.set_ylim(max(heights.values()) + 1.1, -1.0)
    axes.set_title(panel.title, loc="left", fontsize=10)
    axes.axis("off")


def _faded(colour: str, reach: float) -> tuple[float, float, float]:
    share = 0.15 + 0.85 * min(1.0, reach)
    red, green, blue = matplotlib.colors.to_rgb(colour)
    return (1 - share * (1 - red), 1 - share * (1 - green), 1 - share * (1 - blue))


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = command_line("benchmarks.tree_plot", __doc__)
    add_pair(line)
    line.add_argument("--frames", type=int, default=30, help="held-out frames to look through (default: 30)")
    line.add_argument("--seed", type=int, default=0, help="which held-out rooms")
    line.add_argument("--forwards", type=int, default=1, help="draft forwards in the time of a layer (default: 1)")
    line.add_argument("--out", type=Path, required=True, help="the plot, .png")
    return line


def run(options: argparse.Namespace) -> None:
    """Plot the first verification that fits. Raises ValueError where there is none."""
    pair = Pair(options.target_model, options.draft_model)
    asked = questions("simulation", options.frames, options.seed)
    panels = next((found for each in asked for found in pair.panels(each, options.forwards)), None)
    if panels is None:
        raise ValueError(f"no early token was new and right in {options.frames} frames; try more --frames")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    plot(panels).savefig(options.out, dpi=110)
    print(f"wrote {options.out}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0, or 2 after one sentence on stderr."""
    return main_of(parser, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
