/** The flow of one token down through several layers, along the strongest edges of a head in each. */

/** The strongest keys of every query of one head: `width` of them a query. */
export interface Strongest {
  keys: ArrayLike<number>;
  values: ArrayLike<number>;
  width: number;
}

export interface TraceNode {
  token: number;
  /** Product of the probabilities on the way, summed over ways. */
  mass: number;
}

export interface TraceEdge {
  from: number;
  to: number;
  probability: number;
  mass: number;
}

/** One step down: who was reached, along which edges. */
export interface TraceStep {
  nodes: TraceNode[];
  edges: TraceEdge[];
}

/** Tokens that are followed further at each step, so that the picture can be read. */
const FOLLOWED = 8;

/**
 * Follows `token` through the heads of `steps`, the top one first: the `count` strongest edges of every
 * token reached, those of at least `least`.
 */
export function trace(
  token: number,
  steps: readonly Strongest[],
  count: number,
  least: number,
): TraceStep[] {
  let reached: TraceNode[] = [{ token, mass: 1 }];
  return steps.map((step) => {
    const edges: TraceEdge[] = [];
    const masses = new Map<number, number>();
    for (const node of reached) {
      for (let at = 0; at < Math.min(count, step.width); at++) {
        const place = node.token * step.width + at;
        const probability = step.values[place] ?? 0;
        const to = step.keys[place] ?? 0;
        if (probability <= 0 || probability < least) continue;
        const mass = node.mass * probability;
        edges.push({ from: node.token, to, probability, mass });
        masses.set(to, (masses.get(to) ?? 0) + mass);
      }
    }
    reached = [...masses]
      .map(([one, mass]) => ({ token: one, mass }))
      .sort((one, other) => other.mass - one.mass || one.token - other.token)
      .slice(0, FOLLOWED);
    const kept = new Set(reached.map((node) => node.token));
    return { nodes: reached, edges: edges.filter(({ to }) => kept.has(to)) };
  });
}
