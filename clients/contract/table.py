"""What came out, as tables."""


def text(results, holes):
    lines = []
    drivers = list(dict.fromkeys(r["driver"] for r in results))
    classes = list(dict.fromkeys(r["class"] for r in results))
    for driver in drivers:
        cells = []
        for cls in classes:
            mine = [r for r in results if r["driver"] == driver and r["class"] == cls]
            cells.append(f"{cls} {sum(r['ok'] for r in mine)}/{len(mine)}")
        lines.append(f"{driver}: " + ", ".join(cells))
    lines += [f"missing: {name}: {why}" for name, why in holes.items()]
    return "\n".join(lines)


def write(results, holes):
    pass
