/** What stands between the question of a chapter and its answer. */

import type { Question } from './guesses';

export interface Gate {
  question: Question | null;
  /** The guess as the address has it, "skip", or nothing yet. */
  given: string;
  /** Whether the question still fits what is shown: another head or token has another answer. */
  asks: boolean;
  /** Whether the answer is shown. */
  open: boolean;
  onguess: (given: string | null) => void;
  onskipall: () => void;
}
