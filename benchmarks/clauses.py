"""Find the exact clause among 10,000 pages: pages of openstax textbooks with 100 planted clauses.

    python benchmarks/clauses.py make -o runs/clauses
    unmask index runs/clauses/pages.jsonl -o runs/clauses/index --passage-tokens 64 --dtype bfloat16
    python benchmarks/clauses.py ask runs/clauses

A page is 300 consecutive words; a clause stands between two sentences of a page. Each clause has a question
in its own words and one in other words. A question is answered if the first hit has most of the clause.
"""

import json
import lzma
import random
import statistics
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unmask.search.index import Index
    from unmask.search.values import Hit

DATA = Path(__file__).parents[2] / "shared" / "data"
PAGES = 10_000
WORDS = 300

FORMS = (
    (
        "The {0} shall notify the {1} in writing of any {2} within {3} days.",
        "Within how many days shall the {0} notify the {1} in writing of any {2}?",
        "How soon does the {4} have to send the {5} a letter about a {6}?",
        (
            (
                "tenant",
                "landlord",
                "leak in the boiler room",
                "17",
                "renter",
                "house owner",
                "dripping heating cellar",
            ),
            (
                "licensee",
                "licensor",
                "infringement of the trademark",
                "23",
                "user of a brand",
                "owner of the brand",
                "misuse of the logo",
            ),
            (
                "carrier",
                "consignor",
                "damage to refrigerated goods",
                "9",
                "haulage firm",
                "sender",
                "spoiled chilled cargo",
            ),
            (
                "borrower",
                "lender",
                "change of its registered address",
                "31",
                "debtor",
                "bank",
                "move of the head office",
            ),
            (
                "subcontractor",
                "main contractor",
                "defect in the scaffolding",
                "4",
                "hired builder",
                "general builder",
                "faulty platform at the site",
            ),
            (
                "franchisee",
                "franchisor",
                "closure of the outlet",
                "45",
                "shop operator",
                "chain",
                "shutdown of the store",
            ),
            (
                "insured",
                "insurer",
                "theft of the vessel",
                "12",
                "policy holder",
                "insurance company",
                "stolen boat",
            ),
            (
                "processor",
                "controller",
                "breach of personal data",
                "2",
                "service that handles records",
                "company in charge",
                "leaked customer information",
            ),
            (
                "lessee",
                "lessor",
                "failure of the turbine gearbox",
                "28",
                "party that rents the machine",
                "party that owns it",
                "broken wind power drive",
            ),
            (
                "publisher",
                "author",
                "reprint of the illustrated edition",
                "60",
                "book house",
                "writer",
                "new print run with pictures",
            ),
        ),
    ),
    (
        "The fee for {0} is {1} euros per {2} and is due on the {3} of each month.",
        "What is the fee for {0} per {2} and when is it due?",
        "What does one have to pay for {4}?",
        (
            ("mooring a sailing boat", "340", "berth", "third", "keeping a yacht in the harbor"),
            (
                "storing archived patient files",
                "85",
                "shelf meter",
                "fifth",
                "warehousing old medical records",
            ),
            ("the use of the wind tunnel", "1,250", "hour", "tenth", "aerodynamic test time"),
            ("maintenance of the elevators", "410", "cabin", "first", "looking after the lifts"),
            ("collection of hazardous waste", "96", "drum", "twelfth", "taking away toxic garbage"),
            (
                "calibration of the seismometers",
                "720",
                "station",
                "eighth",
                "adjusting the earthquake sensors",
            ),
            (
                "grazing rights on the northern meadow",
                "14",
                "head of cattle",
                "second",
                "letting cows feed on the field up north",
            ),
            (
                "hosting of the ticketing software",
                "0.35",
                "transaction",
                "twentieth",
                "running the program that sells admission",
            ),
            (
                "cold storage of vaccine batches",
                "58",
                "pallet",
                "seventh",
                "keeping inoculation supplies frozen",
            ),
            (
                "night watch at the construction site",
                "39",
                "guard and hour",
                "fourth",
                "security after dark where the building goes up",
            ),
        ),
    ),
    (
        "{0} may be terminated by {1} only if {2} has not been remedied after {3} written warnings.",
        "After how many written warnings may {0} be terminated by {1} if {2} has not been remedied?",
        "When can {5} end {4}?",
        (
            (
                "The catering agreement",
                "the university",
                "a violation of hygiene rules",
                "three",
                "the meal contract",
                "the college",
            ),
            (
                "The franchise of the ferry line",
                "the port authority",
                "a repeated delay of departures",
                "five",
                "the boat service concession",
                "the harbor office",
            ),
            (
                "The supply of hop extract",
                "the brewery",
                "an excess of moisture",
                "two",
                "the beer ingredient deal",
                "the beer maker",
            ),
            (
                "The lease of the planetarium",
                "the city council",
                "a lack of fire doors",
                "four",
                "the rental of the star theater",
                "the town government",
            ),
            (
                "The sponsorship of the marathon",
                "the shoe manufacturer",
                "a misuse of the banner space",
                "six",
                "the funding of the long race",
                "the sneaker company",
            ),
            (
                "The license for the chess database",
                "the federation",
                "an unauthorized copy",
                "seven",
                "the permission to use recorded games",
                "the sports association",
            ),
            (
                "The tutoring contract",
                "the parents",
                "a persistent absence of the teacher",
                "eight",
                "the private lesson arrangement",
                "the family",
            ),
            (
                "The beekeeping partnership",
                "the orchard",
                "an infestation with mites",
                "nine",
                "the joint venture on hives",
                "the fruit farm",
            ),
            (
                "The translation service",
                "the embassy",
                "a disclosure of confidential cables",
                "ten",
                "the interpreter deal",
                "the diplomatic mission",
            ),
            (
                "The towing agreement",
                "the motorway operator",
                "an arrival later than agreed",
                "eleven",
                "the breakdown truck contract",
                "the highway company",
            ),
        ),
    ),
    (
        "Liability of the {0} for {1} is limited to {2} euros, except where {3}.",
        "To how many euros is the liability of the {0} for {1} limited?",
        "How much compensation can one get from the {4} over {5}?",
        (
            (
                "museum",
                "loaned tapestries",
                "72,000",
                "moths were known to be present",
                "gallery",
                "borrowed woven art",
            ),
            (
                "laundry",
                "silk garments",
                "650",
                "the care label was ignored",
                "cleaning firm",
                "ruined fine clothes",
            ),
            (
                "locksmith",
                "scratches on antique doors",
                "1,900",
                "a drill was used",
                "key maker",
                "marks on old entrances",
            ),
            (
                "stable owner",
                "injuries of boarded horses",
                "15,500",
                "the fence was broken",
                "riding yard",
                "a hurt animal in its care",
            ),
            (
                "translator",
                "errors in patent claims",
                "28,000",
                "the source was illegible",
                "language expert",
                "mistakes in an invention document",
            ),
            (
                "parking operator",
                "damage to convertible roofs",
                "2,200",
                "the barrier failed",
                "garage company",
                "a torn soft top",
            ),
            (
                "ski school",
                "lost rental equipment",
                "430",
                "the locker was unlocked",
                "winter sports teacher",
                "missing hired gear",
            ),
            (
                "data recovery firm",
                "further loss of files",
                "5,000",
                "the disk was opened twice",
                "disk rescue company",
                "more vanished documents",
            ),
            (
                "florist",
                "wilted wedding bouquets",
                "380",
                "the room exceeded thirty degrees",
                "flower shop",
                "dried up bridal blooms",
            ),
            (
                "piano mover",
                "cracked sounding boards",
                "8,700",
                "the stairs were not disclosed",
                "instrument transport company",
                "a split grand piano",
            ),
        ),
    ),
    (
        "Samples of {0} must be kept at {1} degrees for at least {2} months by the {3}.",
        "At how many degrees and for how many months must samples of {0} be kept by the {3}?",
        "How should the {5} store specimens of {4}?",
        (
            (
                "imported saffron",
                "6",
                "14",
                "customs laboratory",
                "the red spice from abroad",
                "border inspectors",
            ),
            (
                "river sediment",
                "minus 20",
                "36",
                "environmental agency",
                "mud from the stream",
                "nature protection office",
            ),
            ("infant formula", "18", "25", "dairy", "baby milk powder", "milk factory"),
            ("printing ink", "12", "8", "packaging plant", "the dye for labels", "box maker"),
            (
                "glacier ice",
                "minus 45",
                "120",
                "polar institute",
                "frozen mountain water",
                "arctic researchers",
            ),
            ("engine oil", "22", "11", "shipyard", "motor lubricant", "boat builder"),
            (
                "donated plasma",
                "minus 30",
                "48",
                "blood bank",
                "the fluid given by donors",
                "transfusion service",
            ),
            ("roasted coffee", "15", "7", "auction house", "browned beans", "commodity sellers"),
            ("asphalt cores", "10", "60", "road authority", "drilled pavement pieces", "highway office"),
            ("oak pollen", "4", "18", "botanical garden", "tree dust", "plant park"),
        ),
    ),
    (
        "No {0} may be brought into the {1} without the consent of the {2} and a deposit of {3} euros.",
        "What deposit and whose consent is needed to bring a {0} into the {1}?",
        "Which permission does one need to take a {4} along to the {5}?",
        (
            (
                "drone",
                "bird sanctuary",
                "head ranger",
                "150",
                "flying camera",
                "reserve for geese and herons",
            ),
            ("harpsichord", "chapel", "organist", "900", "early keyboard instrument", "small church"),
            (
                "telescope",
                "rooftop terrace",
                "caretaker",
                "75",
                "device to look at planets",
                "top of the building",
            ),
            ("snake", "kindergarten", "principal", "40", "reptile", "preschool"),
            (
                "welding torch",
                "library annex",
                "fire warden",
                "500",
                "metal joining tool",
                "extra hall for books",
            ),
            (
                "food truck",
                "stadium forecourt",
                "event manager",
                "320",
                "mobile kitchen",
                "square before the arena",
            ),
            ("metal detector", "excavation area", "lead archaeologist", "260", "coin finding gadget", "dig"),
            ("trampoline", "allotment garden", "chairwoman", "55", "jumping bed", "rented vegetable plot"),
            ("smoke machine", "concert barn", "technical director", "110", "fog maker", "rural music venue"),
            ("hunting dog", "deer park", "forester", "65", "hound", "enclosure with stags"),
        ),
    ),
    (
        "The {0} must be inspected every {1} weeks by a {2}, who records {3}.",
        "Every how many weeks must the {0} be inspected by a {2}?",
        "How often does someone check the {4}?",
        (
            ("suspension bridge", "26", "rope engineer", "the tension of each cable", "hanging crossing"),
            (
                "chlorine tank",
                "3",
                "pool supervisor",
                "the pressure of the valve",
                "swimming bath chemical container",
            ),
            ("lighthouse lens", "52", "optician", "every scratch", "glass of the coastal beacon"),
            ("beehives", "5", "veterinarian", "the number of mites", "homes of the honey insects"),
            ("roller coaster", "1", "ride inspector", "the wear of the wheels", "amusement park train"),
            ("grain silo", "13", "fumigation expert", "the temperature of the wheat", "corn tower"),
            ("organ bellows", "39", "organ builder", "the wind pressure", "church instrument air supply"),
            ("emergency generator", "6", "electrician", "the level of diesel", "backup power machine"),
            ("avalanche fence", "17", "mountain guide", "the depth of snow", "barrier against snow slides"),
            ("seed vault", "104", "botanist", "the humidity of the chamber", "store of crop kernels"),
        ),
    ),
    (
        "If {0} falls below {1}, the {2} is entitled to a reduction of the price by {3} percent.",
        "By how many percent is the price reduced for the {2} if {0} falls below {1}?",
        "What discount does the {5} get when {4} is too low?",
        (
            (
                "the fat content of the milk",
                "3.6 percent",
                "cheese maker",
                "11",
                "the cream share of the delivery",
                "dairy craftsman",
            ),
            (
                "the speed of the connection",
                "80 megabits",
                "subscriber",
                "27",
                "the internet bandwidth",
                "customer of the network",
            ),
            (
                "the attendance of the trade fair",
                "9,000 visitors",
                "exhibitor",
                "35",
                "the number of guests at the show",
                "company with a stand",
            ),
            (
                "the germination rate of the barley",
                "92 percent",
                "malthouse",
                "8",
                "the share of sprouting grain",
                "malt producer",
            ),
            (
                "the purity of the copper",
                "99.9 percent",
                "cable factory",
                "6",
                "the quality of the red metal",
                "wire plant",
            ),
            (
                "the room temperature",
                "19 degrees",
                "hotel guest",
                "22",
                "the warmth of the bedroom",
                "overnight visitor",
            ),
            (
                "the brightness of the billboard",
                "400 candela",
                "advertiser",
                "18",
                "the light of the poster wall",
                "marketing client",
            ),
            (
                "the oxygen level of the pond",
                "7 milligrams",
                "angling club",
                "33",
                "the air dissolved in the lake",
                "fishing society",
            ),
            (
                "the length of the yarn",
                "1,000 meters",
                "weaving mill",
                "4",
                "the thread on each reel",
                "cloth maker",
            ),
            (
                "the snow depth at the valley station",
                "25 centimeters",
                "season ticket holder",
                "40",
                "the white cover at the bottom of the slopes",
                "frequent skier",
            ),
        ),
    ),
    (
        "The copyright in {0} passes to the {1} {2} years after {3}.",
        "How many years after {3} does the copyright in {0} pass to the {1}?",
        "When will the {5} own the rights to {4}?",
        (
            (
                "the puppet films",
                "national archive",
                "16",
                "the closure of the studio",
                "the movies with marionettes",
                "state record office",
            ),
            (
                "the railway posters",
                "transport museum",
                "21",
                "the last exhibition",
                "the train advertisements",
                "vehicle collection",
            ),
            (
                "the folk song recordings",
                "conservatory",
                "33",
                "the death of the collector",
                "the taped country tunes",
                "music school",
            ),
            (
                "the tactile maps",
                "institute for the blind",
                "7",
                "the first edition",
                "the charts one can feel",
                "organization for sightless people",
            ),
            (
                "the crossword series",
                "weekly magazine",
                "2",
                "its final puzzle",
                "the word games",
                "periodical",
            ),
            (
                "the tapestry designs",
                "guild of weavers",
                "44",
                "the coronation",
                "the drawings for woven pictures",
                "craft association",
            ),
            (
                "the avalanche photographs",
                "alpine club",
                "19",
                "the expedition",
                "the pictures of snow slides",
                "mountaineers' society",
            ),
            (
                "the cookery lectures",
                "culinary academy",
                "12",
                "the retirement of the chef",
                "the talks on preparing food",
                "gourmet school",
            ),
            (
                "the whale sound library",
                "marine observatory",
                "27",
                "the end of the survey",
                "the audio of big sea mammals",
                "ocean station",
            ),
            (
                "the sundial drawings",
                "observatory foundation",
                "38",
                "the restoration of the tower",
                "the sketches of shadow clocks",
                "astronomy charity",
            ),
        ),
    ),
    (
        "The {0} waives its right to {1} provided that {2} before {3}.",
        "Under which condition does the {0} waive its right to {1}?",
        "In which case does the {4} give up its claim on {5}?",
        (
            (
                "vineyard",
                "first refusal of the slope",
                "the terraces are rebuilt",
                "the autumn of 2031",
                "wine estate",
                "buying the hillside first",
            ),
            (
                "orchestra",
                "broadcast royalties",
                "the rehearsals are public",
                "the gala in May",
                "symphony players",
                "money from radio",
            ),
            (
                "monastery",
                "fishing in the upper pond",
                "the dam is repaired",
                "Saint Martin's day",
                "abbey",
                "catching trout in the lake",
            ),
            (
                "sawmill",
                "transit across the glade",
                "a new bridge is opened",
                "the thaw",
                "timber plant",
                "driving over the clearing",
            ),
            (
                "observatory",
                "darkness after ten o'clock",
                "the lamps are shielded",
                "the lunar eclipse",
                "stargazing station",
                "night without street light",
            ),
            (
                "circus",
                "exclusive use of the fairground",
                "the tents are paid for",
                "the summer tour",
                "traveling show",
                "having the festival field alone",
            ),
            (
                "distillery",
                "water from the eastern spring",
                "a second well is drilled",
                "the harvest of the rye",
                "whisky maker",
                "the source in the east",
            ),
            (
                "newspaper",
                "prior approval of headlines",
                "the archive is digitized",
                "its centenary",
                "daily press",
                "checking titles first",
            ),
            (
                "glassworks",
                "sand from the coastal dune",
                "the dune is replanted",
                "the storm season",
                "bottle factory",
                "grit from the beach hill",
            ),
            (
                "choir",
                "rehearsals in the crypt",
                "a heated hall is offered",
                "the first frost",
                "singers",
                "practicing under the church",
            ),
        ),
    ),
)


def clauses() -> list[tuple[str, str, str]]:
    """Each clause with the question in its words and the one in other words."""
    return [
        (clause.format(*values), own.format(*values), other.format(*values))
        for clause, own, other, rows in FORMS
        for values in rows
    ]


def pages() -> Iterator[str]:
    """Pages of 300 words, in the order of the books."""
    with lzma.open(DATA / "openstax" / "openstax_ccby.jsonl.xz", "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            words = row["text"].split()
            for start in range(0, len(words) - WORDS + 1, WORDS):
                yield " ".join(words[start : start + WORDS])


def make(folder: Path) -> None:
    """Write the pages and the questions."""
    every = list(pages())
    draw = random.Random(0)
    chosen = [every[number] for number in sorted(draw.sample(range(len(every)), PAGES))]
    planted = clauses()
    questions = []
    for number, (clause, own, other) in zip(draw.sample(range(PAGES), len(planted)), planted, strict=True):
        head, border, rest = chosen[number].partition(". ")
        for _ in range(draw.randrange(3, 9)):
            more, again, tail = rest.partition(". ")
            if not again:
                break
            head, rest = f"{head}{border}{more}", tail
        chosen[number] = f"{head}. {clause} {rest}"
        questions.append({"page": f"page-{number}", "clause": clause, "own": own, "other": other})
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "pages.jsonl").open("w", encoding="utf-8") as file:
        for number, text in enumerate(chosen):
            file.write(json.dumps({"_id": f"page-{number}", "text": text}, ensure_ascii=False) + "\n")
    (folder / "questions.json").write_text(json.dumps(questions, indent=1, ensure_ascii=False) + "\n")
    print(f"{PAGES:,} pages of {len(every):,}, {len(questions)} clauses: {folder}")


def holds(index: "Index", hit: "Hit", question: dict[str, str]) -> bool:
    """Whether a hit has most of the clause: passages are cut at sentences, but a long one may be divided."""
    if hit.document != question["page"]:
        return False
    start = index.document(hit.document).text.index(question["clause"])
    end = start + len(question["clause"])
    return 2 * (min(end, hit.end) - max(start, hit.start)) > end - start


def ask(folder: Path) -> None:
    """Search for every clause, in its own and in other words."""
    from unmask.search.index import Index

    index = Index.open(folder / "index")
    questions = json.loads((folder / "questions.json").read_text())
    print(f"{len(index):,} documents, {index.passages:,} passages")
    for mode in ("bm25", "dense", "hybrid"):
        for words in ("own", "other"):
            ranks, seconds = [], []
            for one in questions:
                start = time.perf_counter()
                hits = index.search(one[words], 10, mode)
                seconds.append(time.perf_counter() - start)
                held = [holds(index, hit, one) for hit in hits]
                ranks.append(held.index(True) + 1 if True in held else 0)
            first, ten = sum(rank == 1 for rank in ranks), sum(rank > 0 for rank in ranks)
            print(
                f"{mode:7} {words:6} first {first}, among ten {ten}, of {len(ranks)}; "
                f"median {1000 * statistics.median(seconds):.1f} ms"
            )


def main() -> None:
    """Run what the command line asks for."""
    parser = ArgumentParser(description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("make").add_argument("-o", "--output", type=Path, required=True)
    actions.add_parser("ask").add_argument("folder", type=Path)
    given = parser.parse_args()
    if given.action == "make":
        make(given.output)
    else:
        ask(given.folder)


if __name__ == "__main__":
    main()
