"""List the laws' source documents with authors, titles and arXiv numbers, for citations.

Laws and published constants name their documents in text, such as ``Zhao et al. 2025``; ``references_of`` parses these
names.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from moejax.errors import UserError
from moejax.laws import ALIASES, ALIASES_OF_CURVES, OF_CURVES, entries
from moejax.wording import did_you_mean


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A document that states a law or its constants."""

    key: str
    """Key of the BibTeX entry."""
    named: str
    """Regular expression that matches the document's name in docstrings and sources, without the year."""
    authors: tuple[str, ...]
    """Names in the document's order; empty if it names no authors."""
    title: str
    year: int | None
    arxiv: str = ""
    """arXiv number; empty for documents that are not on arXiv."""
    more: tuple[tuple[str, str], ...] = ()
    """Further BibTeX fields."""

    @property
    def where(self) -> str:
        """Title with the arXiv number, or a remark that no arXiv number is known."""
        return f"{self.title}: {f'arXiv:{self.arxiv}' if self.arxiv else 'no arXiv number is known'}"

    def bibtex(self) -> str:
        """Return the BibTeX entry."""
        of_arxiv = (("eprint", self.arxiv), ("archivePrefix", "arXiv"), ("url", f"https://arxiv.org/abs/{self.arxiv}"))
        fields = [
            ("author", " and ".join(self.authors)),
            ("title", f"{{{self.title}}}"),
            ("year", str(self.year or "")),
            *(of_arxiv if self.arxiv else ()),
            *self.more,
        ]
        lines = [f"  {name:<13} = {{{value}}}," for name, value in fields if value]
        return "\n".join([f"@misc{{{self.key},", *lines, "}"])

    def is_named_in(self, text: str) -> re.Match[str] | None:
        """Return the first match of the document's name and year in a text; None without a match."""
        year = rf"[^;]{{0,160}}?\b{self.year}\b" if self.year else ""
        return re.search(rf"{self.named}{year}", text)


def _paper(key: str, arxiv: str, authors: str, title: str, *, named: str = "") -> Reference:
    """Return an arXiv document; commas separate the authors, and ``key`` ends with the year."""
    names = tuple(authors.replace("et al.", "others").split(", "))
    year = int(key[-4:])
    return Reference(
        key=key, named=named or f"{key[:-4].title()} et al", authors=names, title=title, year=year, arxiv=arxiv
    )


REFERENCES = (
    _paper(
        "kaplan2020",
        "2001.08361",
        "Jared Kaplan, Sam McCandlish, Tom Henighan, Tom B. Brown, Benjamin Chess, Rewon Child, Scott Gray, "
        "Alec Radford, Jeffrey Wu, Dario Amodei",
        "Scaling Laws for Neural Language Models",
    ),
    _paper(
        "hoffmann2022",
        "2203.15556",
        "Jordan Hoffmann, Sebastian Borgeaud, Arthur Mensch, Elena Buchatskaya, Trevor Cai, Eliza Rutherford, "
        "Diego de Las Casas, Lisa Anne Hendricks, Johannes Welbl, Aidan Clark, et al.",
        "Training Compute-Optimal Large Language Models",
    ),
    _paper(
        "besiroglu2024",
        "2404.10102",
        "Tamay Besiroglu, Ege Erdil, Matthew Barnett, Josh You",
        "Chinchilla Scaling: A Replication Attempt",
    ),
    _paper(
        "muennighoff2023",
        "2305.16264",
        "Niklas Muennighoff, Alexander M. Rush, Boaz Barak, Teven {Le Scao}, Aleksandra Piktus, Nouamane Tazi, "
        "Sampo Pyysalo, Thomas Wolf, Colin Raffel",
        "Scaling Data-Constrained Language Models",
    ),
    _paper(
        "wu2026",
        "2606.01155",
        "Boqian Wu, Qiao Xiao, Patrik Okanovic, Tomasz Sternal, Maurice van Keulen, Mykola Pechenizkiy, Elena Mocanu, "
        "Torsten Hoefler, Decebal Constantin Mocanu",
        "When Data Is Scarce: Scaling Sparse Language Models with Repeated Training",
    ),
    _paper(
        "gadre2024",
        "2403.08540",
        "Samir Yitzhak Gadre, Georgios Smyrnis, Vaishaal Shankar, Suchin Gururangan, Mitchell Wortsman, Rulin Shao, "
        "Jean Mercat, Alex Fang, Jeffrey Li, Sedrick Keh, et al.",
        "Language Models Scale Reliably with Over-Training and on Downstream Tasks",
    ),
    _paper(
        "mcleish2025",
        "2502.06857",
        "Sean McLeish, John Kirchenbauer, David Yu Miller, Siddharth Singh, Abhinav Bhatele, Micah Goldblum, "
        "Ashwinee Panda, Tom Goldstein",
        "Gemstones: A Model Suite for Multi-Faceted Scaling Laws",
        named="McLeish et al",
    ),
    _paper(
        "bhagia2024",
        "2412.04403",
        "Akshita Bhagia, Jiacheng Liu, Alexander Wettig, David Heineman, Oyvind Tafjord, Ananya Harsh Jha, "
        "Luca Soldaini, Noah A. Smith, Dirk Groeneveld, Pang Wei Koh, Jesse Dodge, Hannaneh Hajishirzi",
        "Establishing Task Scaling Laws via Compute-Efficient Model Ladders",
    ),
    _paper(
        "zhao2025",
        "2509.23678",
        "Guoliang Zhao, Yuhan Fu, Shuaipeng Li, Xingwu Sun, Ruobing Xie, An Wang, Weidong Han, Zhen Yang, Weixuan Sun, "
        "Yudong Zhang, Cheng-zhong Xu, Di Wang, Jie Jiang",
        "Towards a Comprehensive Scaling Law of Mixture-of-Experts",
    ),
    _paper(
        "abnar2025",
        "2501.12370",
        "Samira Abnar, Harshay Shah, Dan Busbridge, Alaaeldin Mohamed Elnouby Ali, Josh Susskind, Vimal Thilak",
        "Parameters vs FLOPs: Scaling Laws for Optimal Sparsity for Mixture-of-Experts Language Models",
    ),
    _paper(
        "krajewski2024",
        "2402.07871",
        "Jakub Krajewski, Jan Ludziejewski, Kamil Adamczewski, Maciej Pióro, Michał Krutul, Szymon Antoniak, "
        "Kamil Ciebiera, Krystian Król, Tomasz Odrzygóźdź, Piotr Sankowski, et al.",
        "Scaling Laws for Fine-Grained Mixture of Experts",
    ),
    _paper(
        "ludziejewski2025",
        "2502.05172",
        "Jan Ludziejewski, Maciej Pióro, Jakub Krajewski, Maciej Stefaniak, Michał Krutul, Jan Małaśnicki, "
        "Marek Cygan, Piotr Sankowski, Kamil Adamczewski, Piotr Miłoś, et al.",
        "Joint MoE Scaling Laws: Mixture of Experts Can Be Memory Efficient",
    ),
    _paper(
        "clark2022",
        "2202.01169",
        "Aidan Clark, Diego de las Casas, Aurelia Guy, Arthur Mensch, Michela Paganini, Jordan Hoffmann, Bogdan Damoc, "
        "Blake Hechtman, Trevor Cai, Sebastian Borgeaud, et al.",
        "Unified Scaling Laws for Routed Language Models",
    ),
    _paper(
        "wang2024",
        "2410.05661",
        "Siqi Wang, Zhengyu Chen, Bei Li, Keqing He, Min Zhang, Jingang Wang",
        "Scaling Laws Across Model Architectures: A Comparative Analysis of Dense and MoE Models in Large Language "
        "Models",
    ),
    _paper(
        "tian2025",
        "2507.17702",
        "Changxin Tian, Kunlong Chen, Jia Liu, Ziqi Liu, Zhiqiang Zhang, Jun Zhou",
        "Towards Greater Leverage: Scaling Laws for Efficient Mixture-of-Experts Language Models",
    ),
    _paper(
        "deepseek2024",
        "2401.02954",
        "Xiao Bi, Deli Chen, Guanting Chen, Shanhuang Chen, Damai Dai, Chengqi Deng, Honghui Ding, Kai Dong, Qiusi Du, "
        "Zhe Fu, et al.",
        "DeepSeek LLM: Scaling Open-Source Language Models with Longtermism",
        named="DeepSeek-AI",
    ),
    _paper(
        "li2025",
        "2503.04715",
        "Houyi Li, Wenzhen Zheng, Qiufeng Wang, Hanshan Zhang, Zili Wang, Shijie Xuyang, Yuantao Fan, Zhenyu Ding, "
        "Haoying Wang, Ning Ding, Shuigeng Zhou, Xiangyu Zhang, Daxin Jiang",
        "Predictable Scale: Part I, Step Law -- Optimal Hyperparameter Scaling Law in Large Language Model Pretraining",
        named="Li et al",
    ),
    _paper(
        "luo2025",
        "2503.12811",
        "Kairong Luo, Haodong Wen, Shengding Hu, Zhenbo Sun, Zhiyuan Liu, Maosong Sun, Kaifeng Lyu, Wenguang Chen",
        "A Multi-Power Law for Loss Curve Prediction Across Learning Rate Schedules",
    ),
    _paper(
        "tissue2024",
        "2408.11029",
        "Howe Tissue, Venus Wang, Lu Wang",
        "Scaling Law with Learning Rate Annealing",
    ),
    Reference(
        key="li2026",
        named="ICLR",
        authors=(
            *("Houyi Li", "Ka Man Lo", "Shijie Xuyang", "Ziqi Wang", "Wenzhen Zheng", "Haocheng Zhang", "Zhao Li"),
            *("Shuigeng Zhou", "Xiangyu Zhang", "Daxin Jiang"),
        ),
        title="Mixture-of-Experts Can Surpass Dense LLMs Under Strictly Equal Resource",
        year=2026,
        arxiv="2506.12119",
        more=(("note", "ICLR 2026; its explainer: MoE needs a more aggressive data scaling strategy"),),
    ),
    Reference(
        key="chapter002",
        named="chapter 002",
        authors=(),
        title="MoE Scaling Laws",
        year=None,
        more=(
            ("howpublished", "Forging Giants, Chapter 9, Section 2"),
            ("url", "https://www.book-ai.org/books/forging-giants/chapter-09/section-02"),
        ),
    ),
)
"""Documents of the laws."""


def references_of(name: str) -> tuple[Reference, ...]:
    """Return the documents of a law: first the source of its form, then the sources of its published constants.

    Raises:
      UserError: there is no law of this name; the message suggests similar names.
    """
    asked = name.strip().lower().replace("-", "_")
    asked = {**ALIASES, **ALIASES_OF_CURVES}.get(asked, asked)
    every = {entry.name: entry for entry in (*entries(), *OF_CURVES)}
    if asked not in every:
        known = [*every, *ALIASES, *ALIASES_OF_CURVES]
        raise UserError(f"There is no law '{name}'; {did_you_mean(asked, known)}")
    entry = every[asked]
    # The second paragraph of a law's docstring names its source.
    source = " ".join((inspect.cleandoc(entry.law.__doc__ or "") + "\n\n").split("\n\n")[1].split())
    texts = (source, *(one.source for one in entry.published.values()))
    return tuple(dict.fromkeys(one for text in texts for one in _first(text)))


def _first(text: str) -> list[Reference]:
    """Return a list with the first document that a text names; empty if it names none."""
    places = [(place.start(), one) for one in REFERENCES if (place := one.is_named_in(text))]
    return [min(places, key=lambda place: place[0])[1]] if places else []
