/** The result that was opened last, so that whoever comes back finds it. */
export const opened = {
  /** The search it was found by. */
  mark: '',
  rank: 0,
  /** It was brought back into sight. */
  shown: true,
};
