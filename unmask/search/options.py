"""The named choices of search, apart from what computes them, so that the command line starts quickly."""

from typing import Literal

View = Literal["bm25", "dense", "sparse", "multi_vector"]
"""One way in which an index stores passages: terms, one vector, weights of words, or a vector per token."""

VIEWS: tuple[View, ...] = ("bm25", "dense", "sparse", "multi_vector")

VectorBits = Literal[1, 2, 4]
"""Bits of each number of a token's vector in a compressed index (see `unmask.search.views.compression`)."""

DenseBits = Literal[1, 8]
"""Bits of each number of the codes of dense vectors (see `unmask.search.views.compression`)."""

Mode = Literal["hybrid", "bm25", "dense", "sparse", "multi_vector"]
"""By which view passages are ranked; ``"hybrid"`` fuses the rankings of all views that the index has."""

Fusion = Literal["rrf", "min_max"]
"""How hybrid search fuses rankings: by ranks (reciprocal rank fusion), or by scores, those of each view
brought to the range from 0 to 1."""

FUSIONS: tuple[Fusion, ...] = ("rrf", "min_max")

Unit = Literal["passage", "document"]
"""What is ranked: every passage, or every document by its best passage."""

Why = Literal["shares"]
"""An explanation without gradient attribution, which takes most of the time."""

Chunking = Literal["windows", "late"]
"""How the vector of a passage is made: from the passage alone, or from the states of the whole document (late
chunking, Günther et al. 2024)."""

CodeRule = Literal["syntax", "indentation"]
"""Where passages of source code begin: at definitions by the syntax of its language (the extra ``code``), or
at those that are not indented."""

Stemmer = Literal[
    "none", "english", "french", "german", "spanish", "italian", "portuguese", "dutch", "russian"
]
"""Which Snowball stemmer reduces words to stems; ``"none"`` keeps words as they are."""

Rules = Literal["unicode", "words"]
"""What a term of BM25 is; an index keeps those that it was made with."""

StoreFormat = Literal["parquet", "lance", "qdrant", "pgvector", "opensearch"]
"""Where `Index.export` writes passages and their vectors."""

ExportedView = Literal["dense", "multi_vector"]
"""Whose vectors `Index.export` writes: one for each passage, or one for each token."""

Acquisition = Literal["margin", "entropy", "both", "k_center", "random"]
"""How texts are chosen to be labeled: those of which a classifier is least sure (``"margin"``,
``"entropy"``); those farthest from what is labeled (``"k_center"``); those of which it is least sure and that
are far from each other (``"both"``); or any (``"random"``)."""

Representative = Literal["longest", "first"]
"""Which text of a group of duplicates stays: the one of most characters, of equal ones the first; or the
first."""

ClusterMethod = Literal["kmeans", "hdbscan"]
"""How topics are made: k-means, which puts every text into one of a number of clusters, or HDBSCAN (Campello
et al. 2013), which finds their number and leaves out texts of sparse regions."""
