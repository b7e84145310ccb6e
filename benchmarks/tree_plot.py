"""One verification of a real pair as a plot: the token tree before and after an early token, and after the commit.

    python -m benchmarks.tree_plot --out docs/decoding_tree.png

The draft grows a tree and sends its best part; the target checks it layer by layer; in the time of a layer the draft
makes `--forwards` forwards. The plot shows the first verification in which an early token moves the edge from a place
that it took for likelier to the one where the verdict then lands.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cloud_verifier import step as cloud
from cloud_verifier.config import ServerConfig
from cloud_verifier.engine import VlmEngine, find_exits
from cloud_verifier.ledger import Act, Choice
from cloud_verifier.work import prefill_at_once
from edge_drafter import DraftingConfig, StepRequest, sources_of
from edge_drafter.controller import Controller
from edge_drafter.step import Step
from edge_drafter.step_drafter import Outcome, StepDrafter
from edge_drafter.tree import Origin
from speculation.predictor import AUTO, Predictor, find
from speculation.prompts import Vocabulary, asked_form
from speculation.vlm.load import load_vlm
from speculation.vlm.session import VlmSession
from speculation.wire import ROOT, BeginStep, Draft, EarlyTokens
from vlm_nav_evaluation.experiment.command import command_line, main_of
from vlm_nav_evaluation.experiment.questions import questions
from vlm_nav_evaluation.experiment.run import Question
from vlm_nav_evaluation.plots import new_figure
from vlm_nav_evaluation.setting import add_pair

COLOURS = {Origin.COMMITTED: "#333333", Origin.DRAFT: "#4c78a8", Origin.EARLY: "#54a24b", Origin.LOOKUP: "#f58518"}
SHOWN, LEAST = 20, 0.002
"""Nodes of one tree that are plotted: the likeliest, down to a reach."""
CAPACITY = 1024
MAX_TOKENS = 64


class Node(NamedTuple):
    """One token of a plot; `parent` is its place in the list, -1 for the root."""

    text: str
    parent: int
    reach: float
    origin: Origin
    sent: bool


class Panel(NamedTuple):
    """One state of the tree; `mark` is the node that the title is about."""

    title: str
    nodes: list[Node]
    mark: int


class Pair:
    """A draft and a target in one process, taking turns without any link."""

    def __init__(self, target: Path, draft: Path) -> None:
        """Raises ModelFolderError or ValueError for folders that cannot be used."""
        config = ServerConfig.of(target)
        self.target = load_vlm(target, threads=1)
        self.draft = load_vlm(draft, threads=1)
        self.engine = VlmEngine(self.target, 1, CAPACITY, find_exits(config, self.target))
        self.session = VlmSession(self.draft, CAPACITY)
        folder = find(AUTO, self.draft.folder)
        self.predictor = Predictor.load(folder, self.draft.fingerprint) if folder is not None else None

    def panels(self, question: Question, forwards: int) -> Iterator[list[Panel]]:
        """Yield the three panels of every verification in which an early token was new and right."""
        eos = self.target.eos
        config = DraftingConfig.of("full", ahead=False, ngrams=False)
        request = StepRequest(1, question.prompt, question.jpeg, eos, MAX_TOKENS)
        step = Step(config, request, Controller(None), float)
        drafter = StepDrafter(step, sources_of(config, self.session, self.predictor))
        state = cloud.Step(BeginStep(1, question.prompt, question.jpeg, max_tokens=MAX_TOKENS), eos)
        drafter.begin()
        drafter.read()
        prefill_at_once(self.engine, 0, self.engine.prepare(question.prompt, question.jpeg), [], MAX_TOKENS)
        while not step.answer.done:
            while drafter.policy.next_draft() is None and (leaves := drafter.policy.next_leaves()):
                drafter.grow(leaves)
            draft = drafter.send_draft(step.tree.root)
            state.offer(draft)
            found = self._verify(step, drafter, state, draft, forwards)
            if len(found) == 3:
                yield found

    def _verify(self, step: Step, drafter: StepDrafter, state: cloud.Step, draft: Draft, forwards: int) -> list[Panel]:
        assert state.best is not None, "a draft that was sent does not continue the answer"
        row = state.start(Choice(Act.VERIFY, state.best))
        panels: list[Panel] = []
        last = self.target.num_layers - 1
        for output in self.engine.verify([row]):
            verdict = output.verdicts.get(0)
            if verdict is not None and output.layer < last:
                node = verdict.path[-1] if verdict.path else ROOT
                start = state.position + len(verdict.path)
                rates = self.engine.model.reliability.get(output.layer)
                confidence = min(1.0, rates.rate(verdict.confidence) if rates is not None else verdict.confidence)
                before = self._panel(step, "1  a draft is being verified", step.tree.root)
                known = len(step.tree)
                early = EarlyTokens(1, draft.round, start, node, verdict.token, output.layer, confidence)
                raised = drafter.take_early_token(early)
                predicted = (verdict.path, verdict.token)
                sure = f"layer {output.layer}: {confidence:.2f}"
                if raised and (len(step.tree) > known or not panels):
                    panels = [before, Panel(f"2  an exit predicts '{self._word(verdict.token)}' ({sure}", [], -1)]
                    claim = predicted
                elif raised and predicted == claim:
                    panels[1] = panels[1]._replace(title=f"{panels[1].title}, {sure}")
            for _ in range(forwards):
                if leaves := drafter.policy.next_leaves():
                    drafter.grow(leaves)
            if len(panels) == 2 and output.layer < last:
                sent, (path, token) = step.sent.current, claim
                anchor = sent.nodes[path[-1]] if sent is not None and path else step.tree.root
                panels[1] = self._panel(step, panels[1].title, step.tree[anchor].children[token])
        final = output.verdicts[0]
        commit = state.accept(final)
        self.engine.keep(0, final.path, final.token)
        for each, tokens in step.answer.take(commit):
            outcome = drafter.take_commit(each, tokens, 0.0)
        is_right = len(panels) == 2 and claim == (final.path, final.token)
        if step.answer.done or not is_right or outcome is not Outcome.HIT:
            return []
        words = " ".join(self._word(token) for token in commit.tokens)
        title = f"3  the commit: '{words}'. What stood behind its last token is the next draft"
        panels[1] = panels[1]._replace(title=f"{panels[1].title}), and the draft goes on there")
        return [*panels, self._panel(step, title, step.tree.root)]

    def _panel(self, step: Step, title: str, mark: int) -> Panel:
        tree, draft = step.tree, step.sent.current
        keep = [tree.root, *tree.best_nodes(tree.root, SHOWN, 64, LEAST, frozenset())]
        if mark not in keep:
            keep += [node for node in tree.path_to(mark) if node not in keep]
        places = {node: place for place, node in enumerate(keep)}
        nodes = []
        for node in keep:
            content = tree[node]
            origin = Origin.COMMITTED if content.parent is None else content.origin
            if content.parent is not None and content.layers:
                origin = Origin.EARLY
            word = self._word(content.token) if content.token >= 0 else "(prompt)"
            parent = -1 if content.parent is None else places[content.parent]
            nodes.append(Node(word, parent, content.reach, origin, draft is not None and node in draft.nodes))
        return Panel(title, nodes, places[mark])

    def _word(self, token: int) -> str:
        return str(self.target.tokenizer.decode([token])).strip(" ").replace("\n", "↵") or "␣"


def plot(panels: Sequence[Panel]) -> Figure:
    """Return the panels below each other: answer positions to the right, one row a leaf, the likeliest on top."""
    rows = [len(panel.nodes) - len({node.parent for node in panel.nodes} - {-1}) for panel in panels]
    figure = new_figure(1.2 + sum(0.9 + 0.3 * count for count in rows), 13)
    for axes, panel in zip(figure.subplots(len(panels), 1, height_ratios=[2 + n for n in rows]), panels, strict=True):
        _plot_tree(axes, panel)
    labels = {"committed": Origin.COMMITTED, "the draft's": Origin.DRAFT, "predicted by an exit": Origin.EARLY}
    legend = [Patch(facecolor=COLOURS[origin], label=label) for label, origin in labels.items()]
    legend.append(Patch(facecolor="white", edgecolor="black", linewidth=2.0, label="framed: sent, being verified"))
    figure.legend(handles=legend, loc="outside lower center", ncols=len(legend), frameon=False)
    return figure


def _plot_tree(axes: Any, panel: Panel) -> None:
    nodes, rows = panel.nodes, itertools.count()
    places: dict[int, tuple[int, float]] = {}

    def put(node: int, depth: int) -> float:
        children = [child for child, each in enumerate(nodes) if each.parent == node]
        below = [put(child, depth + 1) for child in sorted(children, key=lambda child: -nodes[child].reach)]
        places[node] = depth, below[0] if below else float(next(rows))
        return places[node][1]

    put(0, 0)
    for place, node in enumerate(nodes):
        x, y = places[place]
        if place:
            axes.plot([x - 1, x - 0.5, x], [places[node.parent][1], y, y], color="#aaaaaa", linewidth=1, zorder=1)
        share = 0.15 + 0.85 * min(1.0, node.reach)
        faded = [1 - share * (1 - channel) for channel in to_rgb(COLOURS[node.origin])]
        axes.text(
            x, y, f"{node.text}  {node.reach:.2f}" if place else node.text, ha="center", va="center", fontsize=8,
            color="white" if node.reach > 0.45 or place == 0 else "black", zorder=2,
            bbox={"boxstyle": "round,pad=0.25", "facecolor": faded,
                  "edgecolor": "black" if node.sent else "#cccccc", "linewidth": 1.8 if node.sent else 0.5},
        )  # fmt: skip
        if place == panel.mark and place:
            axes.annotate("", (x, y - 0.3), (x, y - 0.8), arrowprops={"arrowstyle": "-|>", "color": "#d62728"})
    axes.set_xlim(-0.6, 9.0)
    axes.set_ylim(max(height for _, height in places.values()) + 1.1, -1.0)
    axes.set_title(panel.title, loc="left", fontsize=10)
    axes.axis("off")


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
    asked = questions("simulation", options.frames, options.seed, form=asked_form(Vocabulary.load(pair.target.folder)))
    panels = next((found for each in asked for found in pair.panels(each, options.forwards)), None)
    if panels is None:
        raise ValueError(f"no early token was new and right in {options.frames} frames; try more --frames")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    plot(panels).savefig(options.out, dpi=110)
    print(f"wrote {options.out}")


main = partial(main_of, parser, run)

if __name__ == "__main__":
    sys.exit(main())
