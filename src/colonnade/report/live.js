// The bar above the page: how far training is, as its server says it every second.
(() => {
  const bar = document.querySelector('.live progress'), words = document.querySelector('.live p');
  let heard = Date.now(), finished = false;
  document.addEventListener('colonnade:state', ({ detail: { progress, finished: over } }) => {
    heard = Date.now();
    finished = over;
    bar.max = progress.total || 1;
    bar.value = progress.done;
    if (words.textContent !== progress.words) words.textContent = progress.words;
  });
  setInterval(() => {
    if (!finished && Date.now() - heard > 5000) words.textContent = 'No answer: the run has stopped, and this is what was known then.';
  }, 1000);
})();
