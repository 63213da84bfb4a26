/** A paragraph that is long enough for the measures of geometry, and short enough for models that read 256 tokens. */

export const SAMPLE_SOURCE = 'Darwin, On the Origin of Species, 1859, abridged';

export const SAMPLE =
  'It is interesting to contemplate an entangled bank, clothed with many plants of many kinds, with birds singing on the bushes, with various insects flitting about, and with worms crawling through the damp earth, and to reflect that these elaborately constructed forms, so different from each other, and dependent on each other in so complex a manner, have all been produced by laws acting around us. ' +
  'These laws, taken in the largest sense, being Growth with Reproduction; Inheritance which is almost implied by reproduction; a Ratio of Increase so high as to lead to a Struggle for Life, and as a consequence to Natural Selection. ' +
  'Thus, from the war of nature, from famine and death, the most exalted object which we are capable of conceiving, namely, the production of the higher animals, directly follows. ' +
  'There is grandeur in this view of life, with its several powers, having been originally breathed into a few forms or into one; and that, whilst this planet has gone cycling on according to the fixed law of gravity, from so simple a beginning endless forms most beautiful and most wonderful have been, and are being, evolved.';
