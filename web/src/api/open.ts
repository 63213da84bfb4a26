/** Which source this page has. */

import { FrameSource } from './frame';
import { HttpSource } from './http';
import { SavedSource } from './saved';
import type { Source } from './source';
import { takeToken } from './token';

/** The source of this page: answers in the file, a notebook around it, or the server that sent it. */
export function openSource(): Source {
  const saved = document.getElementById('unmask-saved')?.textContent;
  if (saved) return SavedSource.of(saved);
  if (document.querySelector('meta[name="unmask-source"][content="frame"]')) return new FrameSource();
  return new HttpSource(takeToken());
}
