"""PDF files of a few hundred bytes, written by hand."""


def small_pdf(pages):
    """A PDF with a page per entry: text, nothing, or None for a page that holds only a picture."""
    return drawn_pdf(
        [
            "50 0 0 50 9 9 cm /I Do" if page is None else f"BT /F 12 Tf 20 100 Td ({page}) Tj ET"
            for page in pages
        ]
    )


def drawn_pdf(pages, *, further=""):
    """A PDF with these drawings, a page each; ``further`` are other entries of each page."""
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    picture = "<< /Type /XObject /Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceGray"
    objects.append(f"{picture} /BitsPerComponent 8 /Length 1 >>\nstream\n0\nendstream")
    kids = []
    for drawn in pages:
        objects.append(f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream")
        objects.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 400 200] /Resources << /Font << /F 3 0 R >> "
            f"/XObject << /I 4 0 R >> >> {further} /Contents {len(objects)} 0 R >>"
        )
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    written, places = "%PDF-1.4\n", []
    for number, one in enumerate(objects, start=1):
        places.append(len(written))
        written += f"{number} 0 obj\n{one}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = f"xref\n0 {len(places) + 1}\n0000000000 65535 f \n{table}"
    end += f"trailer\n<< /Size {len(places) + 1} /Root 1 0 R >>\nstartxref\n{len(written)}\n%%EOF\n"
    return (written + end).encode("latin-1")


def table_pdf(rows, *, above="", below="", spans=(), further="", corner=(30, 160)):
    """A PDF of a page with a ruled table between two lines of text.

    Args:
        rows: the texts of the cells, row by row; None for a place that another cell covers.
        above: a line before the table.
        below: a line after it.
        spans: of cells that cover several places: (row, column, rows, columns).
        further: other entries of the page.
        corner: the left and the upper edge of the table.
    """
    covered = {(row, column): (down, right) for row, column, down, right in spans}
    drawn, width, height, (left, top) = [], 80, 20, corner
    for row, cells in enumerate(rows):
        for column, text in enumerate(cells):
            if text is None:
                continue
            down, right = covered.get((row, column), (1, 1))
            x, y = left + column * width, top - (row + down) * height
            drawn.append(f"{x} {y} {right * width} {down * height} re S")
            drawn.append(f"BT /F 9 Tf {x + 4} {top - row * height - 14} Td ({text}) Tj ET")
    lines = [f"BT /F 9 Tf {left} {y} Td ({text}) Tj ET" for text, y in ((above, 180), (below, 8)) if text]
    return drawn_pdf([" ".join([*lines[:1], *drawn, *lines[1:]])], further=further)
