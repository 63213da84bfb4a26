/** Hands on the map: dragging moves it, Ctrl and the wheel zoom. */

/** Pixels a pointer moves before a press is a drag and no click. */
const SLACK = 4;
/** Wheel travel of one zoom step. */
const TURN = 40;

interface Press {
  x: number;
  y: number;
  left: number;
  top: number;
}

/** Dragging the content of a scroller with a mouse or pen; fingers scroll by themselves. */
export class Drag {
  /** Whether the pointer is pulling now. */
  pulling = $state(false);
  private press: Press | null = null;

  down(event: PointerEvent, scroller: HTMLElement): void {
    if (event.button !== 0 || event.pointerType === 'touch') return;
    this.press = { x: event.clientX, y: event.clientY, left: scroller.scrollLeft, top: scroller.scrollTop };
  }

  /** True where the movement belonged to a drag. */
  move(event: PointerEvent, scroller: HTMLElement): boolean {
    const { press } = this;
    if (!press) return false;
    const [dx, dy] = [event.clientX - press.x, event.clientY - press.y];
    if (!this.pulling && Math.hypot(dx, dy) > SLACK) {
      this.pulling = true;
      scroller.setPointerCapture(event.pointerId);
    }
    if (this.pulling) [scroller.scrollLeft, scroller.scrollTop] = [press.left - dx, press.top - dy];
    return this.pulling;
  }

  /** Ends the press; true where it was a drag and is no click. */
  up(): boolean {
    const dragged = this.pulling;
    this.press = null;
    this.pulling = false;
    return dragged;
  }
}

/** Where in an element an event is, in CSS pixels. */
export function placeIn(element: Element, event: MouseEvent): { x: number; y: number } {
  const corner = element.getBoundingClientRect();
  return { x: event.clientX - corner.left, y: event.clientY - corner.top };
}

/** Calls `turn` with -1 or 1 for each step of Ctrl and the wheel, which is what a trackpad's pinch says. */
export function wheelZoom(turn: (by: number, event: WheelEvent) => void): (node: HTMLElement) => () => void {
  return (node) => {
    let turned = 0;
    const onwheel = (event: WheelEvent) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      turned += event.deltaY;
      const steps = Math.trunc(turned / TURN);
      turned -= steps * TURN;
      if (steps !== 0) turn(-Math.sign(steps), event);
    };
    node.addEventListener('wheel', onwheel, { passive: false });
    return () => node.removeEventListener('wheel', onwheel);
  };
}
