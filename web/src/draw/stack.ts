/** Shares that are stacked to a bar. */

export interface Part {
  name: string;
  /** Its place in the legend. */
  place: number;
  from: number;
  share: number;
}

export interface Bar {
  layer: number;
  parts: Part[];
}

/**
 * Mean mass by class of key as bars. A key may be of several classes, so the masses may sum to more than
 * 1; they are drawn over their sum.
 */
export function stacked(
  names: readonly string[],
  layers: readonly { layer: number; mass: Readonly<Record<string, number>> }[],
): { names: string[]; layers: Bar[] } {
  return {
    names: [...names],
    layers: layers.map(({ layer, mass }) => {
      const sum = names.reduce((total, name) => total + (mass[name] ?? 0), 0) || 1;
      let from = 0;
      const parts = names.map((name, place) => {
        const part = { name, place, from, share: (mass[name] ?? 0) / sum };
        from += part.share;
        return part;
      });
      return { layer, parts };
    }),
  };
}
