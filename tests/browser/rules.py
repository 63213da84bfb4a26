"""Rules of accessibility that a page is held to, each a list of what breaks it."""

RULES = r"""
() => {
  const found = [];
  const seen = element => element.checkVisibility({opacityProperty: true, visibilityProperty: true});
  const where = element => element.tagName.toLowerCase() +
    (element.id ? '#' + element.id : '') +
    (element.classList.length ? '.' + element.classList[0] : '') +
    (element.dataset.testid ? `[${element.dataset.testid}]` : '') +
    ' "' + (element.textContent || '').trim().slice(0, 30) + '"';
  const broken = (rule, element, why = '') => found.push(`${rule}: ${where(element)} ${why}`);
  const all = selector => [...document.querySelectorAll(selector)].filter(seen);

  const ids = new Map();
  for (const element of document.querySelectorAll('[id]')) {
    if (ids.has(element.id)) broken('ids are unique', element);
    ids.set(element.id, element);
  }
  for (const name of ['aria-labelledby', 'aria-controls', 'aria-describedby', 'aria-activedescendant'])
    for (const element of all(`[${name}]`))
      for (const id of element.getAttribute(name).split(/\s+/))
        if (id && !ids.has(id)) broken(`${name} names an element`, element, id);

  const referred = element => (element.getAttribute('aria-labelledby') || '').split(/\s+/)
    .map(id => ids.get(id)?.textContent || '').join(' ');
  const titled = element => [...element.children].find(({tagName}) => tagName === 'title')?.textContent;
  const named = element => (element.getAttribute('aria-label') || referred(element).trim() || titled(element)
    || [...(element.labels || [])].map(label => label.textContent).join(' ').trim() || element.title
    || element.alt || (/^(BUTTON|A|SUMMARY|OPTION)$/.test(element.tagName) || element.hasAttribute('role')
      ? element.textContent : '') || '').trim() !== '';
  for (const element of all('button, a[href], select, textarea, summary, input:not([type=hidden]), ' +
      '[role=button], [role=tab], [role=grid], [role=slider], [role=tablist], dialog[open]'))
    if (!named(element)) broken('controls have names', element);
  for (const element of all('canvas, svg, img')) {
    if (element.closest('[aria-hidden=true]')) continue;
    const holder = element.closest('[role=img], [role=grid], [role=group], [role=slider], img, button');
    if (!holder || !named(holder)) broken('pictures have names', element);
  }
  for (const element of all('[aria-hidden=true] :is(button, a, [tabindex="0"])'))
    broken('what is hidden takes no focus', element);
  for (const element of all('[tabindex]')) if (element.tabIndex > 0) broken('order of the page', element);
  for (const element of all('table')) {
    if (!element.caption && !element.getAttribute('aria-label')) broken('tables have names', element);
    if (!element.querySelector('th')) broken('tables have headings', element);
  }

  let level = 0;
  for (const element of all('h1, h2, h3, h4, h5')) {
    const own = Number(element.tagName[1]);
    if (own > level + 1) broken('headings follow each other', element, `after h${level}`);
    level = own;
  }
  if (all('h1').length !== 1) found.push('one h1');

  const paper = Object.assign(document.createElement('canvas'), {width: 1, height: 1})
    .getContext('2d', {willReadFrequently: true});
  const known = new Map();
  const rgba = color => {
    if (!known.has(color)) {
      paper.clearRect(0, 0, 1, 1);
      paper.fillStyle = color;
      paper.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = paper.getImageData(0, 0, 1, 1).data;
      known.set(color, [r, g, b, a / 255]);
    }
    return known.get(color);
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a)];
  const luminance = rgb => rgb.map(one => one / 255)
    .map(one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
  const background = element => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.backgroundImage !== 'none') return null;
      layers.push(rgba(style.backgroundColor));
    }
    return layers.reverse().reduce((under, layer) => over(layer, under), [255, 255, 255]);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const checked = new Set();
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || checked.has(element) || !seen(element)) continue;
    checked.add(element);
    const exempt = '.unseen, :disabled, :has(> :disabled), [aria-hidden=true], title, option, style, script';
    if (element.closest(exempt)) continue;
    const style = getComputedStyle(element);
    const under = background(element);
    if (!under) continue;
    let [r, g, b, a] = rgba(element instanceof SVGElement ? style.fill : style.color);
    for (let at = element; at; at = at.parentElement) a *= Number(getComputedStyle(at).opacity);
    const [one, other] = [luminance(over([r, g, b, a], under)), luminance(under)];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (contrast < (large ? 3 : 4.5)) broken('text can be read', element, contrast.toFixed(2));
  }
  return [...new Set(found)];
}
"""

FOCUS = r"""
() => {
  const element = document.activeElement;
  if (!element || element === document.body) return null;
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  const visible = element.checkVisibility({opacityProperty: true, visibilityProperty: true});
  // A radio or a box that is drawn by its label shows its focus there.
  const shown = [element, element.closest('label'), element.nextElementSibling].some(one => one &&
    getComputedStyle(one).outlineStyle !== 'none' && parseFloat(getComputedStyle(one).outlineWidth) >= 1);
  window.stops ??= [];
  const again = window.stops.includes(element);
  window.stops.push(element);
  return {
    what: element.tagName.toLowerCase() + ' '
      + (element.dataset.testid || element.id || element.ariaLabel || '')
      + ' "' + (element.textContent || '').trim().slice(0, 20) + '"',
    shown: shown && visible && box.width > 0,
    again,
    inside: element.closest('#stage') !== null,
  };
}
"""


def broken_rules(page):
    """Sentences about what breaks a rule, none where all is well."""
    return page.evaluate(RULES)


def tab_through(page, most=600):
    """What Tab reaches, from the top of the page until it leaves or comes round again."""
    page.evaluate(
        """() => {
            window.stops = [];
            document.body.tabIndex = -1;
            document.body.focus();
            document.body.removeAttribute('tabindex');
        }"""
    )
    reached = []
    for _ in range(most):
        page.keyboard.press("Tab")
        at = page.evaluate(FOCUS)
        if at is None or at["again"]:
            return reached
        reached.append(at)
    raise AssertionError(f"Tab does not leave the page after {most} stops")
