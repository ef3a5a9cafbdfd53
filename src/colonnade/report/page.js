// What the figures and tables do under a pointer or a keyboard. Without it they are all there and print the same.
'use strict';
(() => {
  const NS = 'http://www.w3.org/2000/svg';
  const node = (name, attributes, text) => {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };

  // The one read-out of the page, beside the pointer; all text goes in as text.
  const readout = () => {
    let box = document.getElementById('readout');
    if (!box) {
      box = document.createElement('div');
      box.id = 'readout';
      box.hidden = true;
      box.setAttribute('role', 'status');
      document.body.append(box);
    }
    return box;
  };
  const hide = () => { readout().hidden = true; };
  const show = (title, lines, x, y) => {
    const box = readout(), head = document.createElement('b');
    head.textContent = title;
    box.replaceChildren(head, ...lines.map(words => {
      const line = document.createElement('span');
      line.append(...words.map(word => Object.assign(document.createElement('span'), { textContent: word })));
      return line;
    }));
    box.hidden = false;
    const wide = document.documentElement.clientWidth;
    const left = x + 14 + box.offsetWidth > wide ? x - 14 - box.offsetWidth : x + 14;
    box.style.left = `${Math.max(4, left) + scrollX}px`;
    box.style.top = `${Math.max(4, y - box.offsetHeight / 2) + scrollY}px`;
  };

  const ticks = (low, high, most, whole) => {
    const power = 10 ** Math.floor(Math.log10((high - low) / most));
    const steps = [1, 2, 2.5, 5, 10, 20, 25, 50, 100].map(step => step * power);
    const step = steps.find(one => (high - low) / one < most && !(whole && !Number.isInteger(+one.toPrecision(6))));
    if (!step) return [low];
    const found = [];
    for (let n = Math.ceil(low / step - 1e-9); n <= high / step + 1e-9; n++) found.push(+(n * step).toPrecision(10));
    return found;
  };
  const written = value => {
    for (const [limit, unit] of [[1e9, 'G'], [1e6, 'M'], [1e3, 'k']])
      if (Math.abs(value) >= limit) return `${+(value / limit).toPrecision(6)}${unit}`;
    return `${+value.toPrecision(6)}`;
  };
  const exact = value => Number.isInteger(value) ? value.toLocaleString('en') : value.toPrecision(4);

  // A line chart: a read-out of all lines at the nearest x, zoom by dragging, lines off and on by the legend.
  const lines = svg => {
    const about = JSON.parse(svg.dataset.chart);
    const [left, top, width, height] = about.box;
    const grid = svg.querySelector('.grid'), drawn = [...svg.querySelectorAll('.series')];
    const off = new Set();
    let xs = about.x, ys = about.y, at = -1;
    const px = x => left + width * (x - xs[0]) / (xs[1] - xs[0]);
    const py = y => top + height - height * (y - ys[0]) / (ys[1] - ys[0]);
    const visible = () => about.series.filter((_, number) => !off.has(number));
    const places = () => [...new Set(visible().flatMap(one => one.x))].filter(x => x >= xs[0] && x <= xs[1]).sort((a, b) => a - b);

    const redraw = () => {
      const shown = visible().flatMap(one => one.y.filter((y, i) => y !== null && one.x[i] >= xs[0] && one.x[i] <= xs[1]));
      const whole = xs[0] === about.x[0] && xs[1] === about.x[1] && !off.size;
      if (whole || !shown.length) ys = about.y;
      else {
        const low = Math.min(...shown), high = Math.max(...shown), room = 0.06 * (high - low) || Math.abs(high) * 0.1 || 1;
        ys = [low - room, high + room];
      }
      const made = [];
      for (const y of ticks(...ys, 5)) made.push(
        node('line', { x1: left, y1: py(y), x2: left + width, y2: py(y) }),
        node('text', { x: left - 8, y: py(y) + 4, 'text-anchor': 'end' }, written(y)));
      for (const x of ticks(...xs, 7, about.whole)) made.push(
        node('line', { x1: px(x), y1: top + height, x2: px(x), y2: top + height + 5, class: 'tick' }),
        node('text', { x: px(x), y: top + height + 20, 'text-anchor': 'middle' }, written(x)));
      made.push(node('line', { x1: left, y1: top + height, x2: left + width, y2: top + height, class: 'base' }));
      grid.replaceChildren(...made);
      drawn.forEach((group, number) => {
        const one = about.series[number];
        let pen = 'M', path = '';
        const circles = [...group.querySelectorAll('circle')];
        one.x.forEach((x, i) => {
          if (one.y[i] === null) { pen = 'M'; return; }
          path += `${pen}${px(x).toFixed(2)} ${py(one.y[i]).toFixed(2)}`;
          pen = 'L';
          const circle = circles.shift();
          if (circle) { circle.setAttribute('cx', px(x)); circle.setAttribute('cy', py(one.y[i])); }
        });
        group.querySelector('path').setAttribute('d', path);
        group.classList.toggle('off', off.has(number));
      });
      svg.dataset.zoomed = whole ? '' : 'yes';
      clear();
    };

    const cursor = node('g', { class: 'cursor' });
    svg.append(cursor);
    const clear = () => { cursor.replaceChildren(); hide(); at = -1; };
    const point = number => {
      const found = places();
      if (!found.length) return;
      at = Math.max(0, Math.min(found.length - 1, number));
      const x = found[at], marks = [node('line', { x1: px(x), y1: top, x2: px(x), y2: top + height })], told = [];
      about.series.forEach((one, which) => {
        const i = one.x.indexOf(x);
        if (off.has(which) || i < 0 || one.y[i] === null) return;
        marks.push(node('circle', { cx: px(x), cy: py(one.y[i]), r: 4.5, class: `s${which % 8 + 1}` }));
        told.push([one.name, exact(one.y[i])]);
      });
      cursor.replaceChildren(...marks);
      const frame = svg.getBoundingClientRect(), scale = frame.width / svg.viewBox.baseVal.width;
      show(`${about.names[0]} ${exact(x)}`, told, frame.left + px(x) * scale, frame.top + (top + height / 3) * scale);
    };
    const where = event => {
      const frame = svg.getBoundingClientRect();
      const x = (event.clientX - frame.left) * svg.viewBox.baseVal.width / frame.width;
      return Math.max(left, Math.min(left + width, x));
    };
    const value = pixel => xs[0] + (pixel - left) / width * (xs[1] - xs[0]);

    let start = null, band = null;
    svg.addEventListener('pointerdown', event => {
      if (event.target.closest('.legend') || event.button) return;
      start = where(event);
      if (event.pointerType === 'mouse') svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener('pointermove', event => {
      const here = where(event);
      if (start !== null && event.pointerType === 'mouse' && Math.abs(here - start) > 6) {
        if (!band) svg.append(band = node('rect', { y: top, height, class: 'zooming' }));
        band.setAttribute('x', Math.min(here, start));
        band.setAttribute('width', Math.abs(here - start));
      }
      const wanted = value(here), found = places();
      if (found.length) point(found.reduce((best, x, i) => Math.abs(x - wanted) < Math.abs(found[best] - wanted) ? i : best, 0));
    });
    svg.addEventListener('pointerup', event => {
      const end = where(event), begin = start;
      start = null;
      if (!band) return;
      band.remove();
      band = null;
      const range = [value(Math.min(begin, end)), value(Math.max(begin, end))];
      const inside = [...new Set(about.series.flatMap(one => one.x))].filter(x => x >= range[0] && x <= range[1]);
      if (inside.length < 2) return;
      xs = range;
      redraw();
    });
    const reset = () => { xs = about.x; redraw(); };
    svg.addEventListener('pointerleave', () => { if (start === null) clear(); });
    svg.addEventListener('dblclick', reset);
    svg.tabIndex = 0;
    svg.addEventListener('blur', clear);
    svg.addEventListener('keydown', event => {
      if (event.target !== svg) return;
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) { point(at < 0 ? (step > 0 ? 0 : Infinity) : at + step); event.preventDefault(); }
      if (event.key === 'Escape') reset();
    });
    svg.querySelectorAll('.legend g').forEach((entry, number) => {
      entry.setAttribute('role', 'button');
      entry.setAttribute('tabindex', '0');
      entry.setAttribute('aria-pressed', 'true');
      const toggle = () => {
        if (off.has(number)) off.delete(number); else if (off.size < drawn.length - 1) off.add(number);
        entry.classList.toggle('off', off.has(number));
        entry.setAttribute('aria-pressed', String(!off.has(number)));
        redraw();
      };
      entry.addEventListener('click', toggle);
      entry.addEventListener('keydown', event => {
        if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); toggle(); }
      });
    });
  };

  const tips = part => {
    const tell = event => show(part.dataset.tip, [], event.clientX, event.clientY - 26);
    part.addEventListener('pointermove', tell);
    part.addEventListener('pointerleave', hide);
  };

  // Tables sort by a column's numbers, or as text; once more turns the order round.
  const sortable = table => {
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      const button = document.createElement('button');
      button.type = 'button';
      button.append(...cell.childNodes);
      cell.append(button);
      button.addEventListener('click', () => {
        const numeric = cell.classList.contains('n');
        const before = cell.getAttribute('aria-sort');
        const way = before ? (before === 'ascending' ? -1 : 1) : (numeric ? -1 : 1);
        const key = row => row.cells[column]?.dataset.key ?? row.cells[column]?.textContent ?? '';
        const compare = (a, b) => {
          const [x, y] = [key(a), key(b)], [p, q] = [parseFloat(x), parseFloat(y)];
          if (!numeric) return way * x.localeCompare(y, 'en', { numeric: true });
          if (Number.isNaN(p) || Number.isNaN(q)) return Number.isNaN(p) - Number.isNaN(q);
          return way * (p - q);
        };
        [...table.tHead.rows[0].cells].forEach(other => other.removeAttribute('aria-sort'));
        cell.setAttribute('aria-sort', way > 0 ? 'ascending' : 'descending');
        table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
      });
    });
  };

  // A figure as a file: with its rules inside, on white.
  const standalone = svg => {
    const copy = svg.cloneNode(true), [, , width, height] = svg.getAttribute('viewBox').split(' ').map(Number);
    copy.querySelectorAll('.cursor, .zooming').forEach(part => part.remove());
    copy.setAttribute('width', width);
    copy.setAttribute('height', height);
    const rules = document.getElementById('figure-rules').textContent;
    copy.prepend(node('style', {}, rules), node('rect', { width, height, fill: '#fff' }));
    return { text: new XMLSerializer().serializeToString(copy), width, height };
  };
  const save = (blob, name) => {
    const link = Object.assign(document.createElement('a'), { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const asSvg = (svg, name) => save(new Blob([standalone(svg).text], { type: 'image/svg+xml' }), `${name}.svg`);
  const asPng = (svg, name) => {
    const { text, width, height } = standalone(svg), picture = new Image();
    picture.onload = () => {
      const canvas = Object.assign(document.createElement('canvas'), { width: 2 * width, height: 2 * height });
      canvas.getContext('2d').drawImage(picture, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(blob => save(blob, `${name}.png`), 'image/png');
    };
    picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  };

  const enhance = root => {
    document.documentElement.classList.add('scripted');
    hide();
    for (const svg of root.querySelectorAll('svg.lines:not([data-live])')) { svg.dataset.live = 'yes'; lines(svg); }
    root.querySelectorAll('[data-tip]').forEach(tips);
    for (const table of root.querySelectorAll('table.sortable:not([data-live])')) { table.dataset.live = 'yes'; sortable(table); }
    root.querySelectorAll('.tools button').forEach(button => {
      const figure = button.closest('figure'), svg = figure.querySelector('svg.chart');
      const what = { svg: asSvg, png: asPng }[button.dataset.save];
      button.onclick = () => what(svg, figure.id);
    });
  };
  window.colonnade = { enhance };
  enhance(document);

  // While a run is running, the page asks its server for what is new.
  if (document.body.dataset.live === 'yes') {
    let version = Number(document.body.dataset.version);
    const ask = async () => {
      let finished = false;
      try {
        const state = await (await fetch('state')).json();
        finished = state.finished;
        document.dispatchEvent(new CustomEvent('colonnade:state', { detail: state }));
        if (state.version !== version) {
          const open = [...document.querySelectorAll('main details[open]')].map(one => one.id);
          document.querySelector('main').innerHTML = state.main;
          for (const id of open) document.getElementById(id)?.setAttribute('open', '');
          enhance(document);
        }
        version = state.version;
      } catch { /* the server is gone or busy: ask again */ }
      if (!finished) setTimeout(ask, 1000);
    };
    ask();
  }
})();
