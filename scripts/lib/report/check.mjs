// Opens every page of a directory in a headless Chromium, at several widths, light and dark, and says
// what is wrong with it. Called by scripts/check-report, which has its packages beside it.
//
//     node check.mjs PAGES SHOTS

import { mkdir, readdir } from "node:fs/promises";
import { basename, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import chromium from "@sparticuz/chromium";
import puppeteer from "puppeteer-core";

const [pages, shots] = process.argv.slice(2).map((path) => resolve(path));
const WIDTHS = [320, 400, 620, 900, 1280];
// Letters below this many pixels are not read but guessed.
const LETTER_MIN_PX = 9;
// Pages with nothing to draw.
const WITHOUT_CHARTS = ["empty"];

// Runs in the page: what is wrong with what can be seen, in words.
function look(letterMinPx) {
  const wrong = [];
  const wide = document.documentElement.clientWidth;
  const seen = (element) => element.getClientRects().length > 0;
  const name = (element) =>
    `${element.tagName.toLowerCase()}.${element.getAttribute("class") ?? ""} "${(element.textContent ?? "").trim().slice(0, 40)}"`;
  if (document.documentElement.scrollWidth > wide)
    wrong.push(`the page is ${document.documentElement.scrollWidth} px wide, the window ${wide} px`);
  for (const element of document.querySelectorAll("h1,h2,h3,p,li,dt,dd,table,svg,figure,output")) {
    if (!seen(element) || element.closest(".scroll")) continue;
    const box = element.getBoundingClientRect();
    if (box.left < -0.5 || box.right > wide + 0.5) wrong.push(`${name(element)} leaves the page`);
    if (element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0 && element.tagName !== "svg")
      wrong.push(`${name(element)} is wider than its place`);
  }
  const svgs = [...document.querySelectorAll("svg")].filter(seen);
  for (const svg of svgs) {
    const box = svg.getBoundingClientRect();
    if (box.width < 100 || box.height < 15) wrong.push(`${name(svg)} is ${box.width} x ${box.height} px`);
    const scale = box.width / svg.viewBox.baseVal.width;
    const texts = [...svg.querySelectorAll("text")].map((text) => [text, text.getBoundingClientRect()]);
    for (const [text, at] of texts) {
      const size = parseFloat(getComputedStyle(text).fontSize) * scale;
      if (size < letterMinPx) wrong.push(`${name(text)} has letters of ${size.toFixed(1)} px`);
      if (at.left < box.left - 1 || at.right > box.right + 1 || at.top < box.top - 1 || at.bottom > box.bottom + 1)
        wrong.push(`${name(text)} leaves its chart`);
    }
    for (let i = 0; i < texts.length; i++)
      for (let j = 0; j < i; j++) {
        const [a, b] = [texts[i][1], texts[j][1]];
        const over = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        // Boxes of text have air above and below.
        const deep = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (over > 0.5 && deep > 4) wrong.push(`${name(texts[i][0])} lies on ${name(texts[j][0])}`);
      }
    for (const drawn of svg.querySelectorAll("path,circle")) {
      const extent = drawn.getBBox();
      if (!(extent.width > 0 || extent.height > 0)) wrong.push(`${name(drawn)} in ${svg.ariaLabel} has no size`);
    }
    if (/NaN|inf/.test(svg.outerHTML)) wrong.push(`${name(svg)} has a coordinate that is no number`);
  }
  const strange = document.querySelectorAll("img,iframe,object,embed,link,form,a,[style],[src],[onerror]");
  for (const element of strange) wrong.push(`${name(element)} does not belong there`);
  if (!document.title.endsWith("gristmill")) wrong.push(`the title is "${document.title}"`);
  return { wrong, charts: svgs.length };
}

async function pointAt(page) {
  const plot = await page.evaluateHandle(() =>
    [...document.querySelectorAll(".plot")].find((svg) => svg.getClientRects().length && svg.querySelector("path")));
  const element = plot.asElement();
  if (!element) return [];
  await element.scrollIntoView();
  const box = await element.boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
  return page.evaluate(() => {
    const wrong = [];
    const read = [...document.querySelectorAll("output[data-series]")].map((output) => output.textContent);
    if (!read.some((text) => /\d/.test(text))) wrong.push("nothing is read off under the pointer");
    if (!document.querySelector("output[data-time]").textContent) wrong.push("no time under the pointer");
    if (document.querySelector(".cross[visibility=visible]") === null) wrong.push("no line at the pointer");
    const wide = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth > wide) wrong.push("the page grows wider under the pointer");
    return wrong;
  });
}

async function check(browser, path, { width, scheme, script, media }) {
  const wrong = [];
  const page = await browser.newPage();
  page.on("console", (message) => wrong.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => { wrong.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  const url = pathToFileURL(path).href;
  page.on("request", (request) => { if (request.url() !== url) wrong.push(`asks for ${request.url()}`); });
  await page.setJavaScriptEnabled(script);
  await page.setViewport({ width, height: 900 });
  // In one call: setting one of them separately resets the other.
  const session = await page.createCDPSession();
  const features = [{ name: "prefers-color-scheme", value: scheme }];
  await session.send("Emulation.setEmulatedMedia", { media, features });
  await page.goto(url);
  const seen = await page.evaluate(look, LETTER_MIN_PX);
  wrong.push(...seen.wrong);
  const paper = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = paper === "rgb(255, 255, 255)";
  if (light !== (scheme === "light" || media === "print")) wrong.push(`the paper is ${paper}`);
  const name = basename(path, ".html");
  if ((seen.charts === 0) !== WITHOUT_CHARTS.includes(name)) wrong.push(`shows ${seen.charts} charts`);
  if (script && seen.charts && media === "screen") wrong.push(...(await pointAt(page)));
  if (script) {
    const view = media === "print" ? "print" : scheme;
    await page.mouse.move(0, 0);
    await page.screenshot({ path: join(shots, `${name}-${width}-${view}.png`), fullPage: true });
  }
  await page.close();
  return wrong;
}

// Views to check: every width in both schemes, once without script, and as it is printed on A4.
const views = WIDTHS.flatMap((width) => ["light", "dark"].map((scheme) => ({ width, scheme, script: true, media: "screen" })));
views.push({ width: 1280, scheme: "light", script: false, media: "screen" });
views.push({ width: 718, scheme: "dark", script: true, media: "print" });

const executablePath = process.env.CHROME || (await chromium.executablePath());
const browser = await puppeteer.launch({ executablePath, args: chromium.args, headless: "shell" });
let [passed, failed] = [0, 0];
try {
  await mkdir(shots, { recursive: true });
  console.log(await browser.version());
  const files = (await readdir(pages)).filter((file) => file.endsWith(".html")).sort();
  if (files.length === 0) throw new Error(`${pages}: no pages`);
  for (const file of files) {
    const path = join(pages, file);
    for (const view of views) {
      const wrong = [...new Set(await check(browser, path, view))];
      wrong.length ? failed++ : passed++;
      const { width, scheme, script, media } = view;
      const seen = `${file} at ${width} px, ${scheme}, ${media}${script ? "" : ", without script"}`;
      for (const what of wrong.slice(0, 12)) console.error(`${seen}: ${what}`);
      if (wrong.length > 12) console.error(`${seen}: and ${wrong.length - 12} more`);
    }
  }
} finally {
  await browser.close();
}
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed ? 1 : 0;
