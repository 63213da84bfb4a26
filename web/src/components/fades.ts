/** A sign that a box scrolls: its edge fades where more of it is out of sight. */

/** Keeps `data-more` of a scrolling box at the sides where it goes on, "left right"; page.css fades them. */
export function fades(box: HTMLElement): () => void {
  const look = () => {
    const left = box.scrollLeft > 2;
    const right = box.scrollLeft + box.clientWidth < box.scrollWidth - 2;
    box.dataset.more = [left && 'left', right && 'right'].filter(Boolean).join(' ');
  };
  const sizes = new ResizeObserver(look);
  sizes.observe(box);
  for (const child of box.children) sizes.observe(child);
  const added = new MutationObserver(look);
  added.observe(box, { childList: true });
  box.addEventListener('scroll', look, { passive: true });
  look();
  return () => {
    sizes.disconnect();
    added.disconnect();
    box.removeEventListener('scroll', look);
  };
}
