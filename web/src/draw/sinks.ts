/** What the strongest sinks of all heads are, in sentences. */

/** How many heads have a sink that does nothing, and how many one that passes something on; "neither" is the rest. */
export function sinkKinds(heads: readonly { type: string }[]): string {
  const count = (wanted: string) => heads.filter(({ type }) => type === wanted).length;
  const where = (number: number) => (number === 0 ? 'no head' : number === 1 ? '1 head' : `${number} heads`);
  const [noOp, broadcast] = [count('no-op'), count('broadcast')];
  return (
    `In ${noOp === 0 ? where(0) : `${where(noOp)} of ${heads.length}`} the strongest sink has a short value vector, so that attending to it adds almost nothing (a no-op). ` +
    `In ${where(broadcast)} the sink collects what other tokens hold and passes the same vector to all of them (a broadcast).`
  );
}
