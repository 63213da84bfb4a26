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
  layers: readonly { layer: number; mass: readonly number[] }[],
): { names: string[]; layers: Bar[] } {
  return {
    names: [...names],
    layers: layers.map(({ layer, mass }) => {
      const sum = mass.reduce((total, one) => total + one, 0) || 1;
      let from = 0;
      const parts = mass.map((one, place) => {
        const part = { name: names[place] ?? '', place, from, share: one / sum };
        from += part.share;
        return part;
      });
      return { layer, parts };
    }),
  };
}
