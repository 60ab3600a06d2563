# /// script
# [tool.marimo.display]
# theme = "system"
# ///
"""The marimo page of `moejax explore`: controls and what they move; its neighbours compute and say."""

import marimo  # type: ignore[import-not-found]

app = marimo.App(
    width="full", app_title="moejax: laws of mixtures", css_file="explorer.css", html_head_file="head.html"
)


@app.cell
def _():
    import os
    from dataclasses import replace

    import marimo as mo  # type: ignore[import-not-found]

    from moejax.laws.catalogue import CATALOGUE
    from moejax.report.explorer import page
    from moejax.report.explorer.available import find_available
    from moejax.report.explorer.config import config
    from moejax.report.explorer.serve import SOURCE
    from moejax.report.explorer.state import KNOBS, PRESETS, of_link
    from moejax.report.explorer.view import view
    from moejax.wording import told

    available = find_available(os.environ.get(SOURCE, ""))
    return CATALOGUE, KNOBS, PRESETS, config, mo, of_link, available, page, replace, told, view


@app.cell
def _(mo, of_link, available):
    start, refusals = of_link(mo.query_params().to_dict(), available.laws, available.start)
    alarm = " ".join(refusals)
    # Controls stand in lists: a bare one would make a page twice, for its value and for the state that follows it.
    # What is chosen, and what controls are made from when another control has moved them.
    get_state, set_state = mo.state(start)
    get_all, set_all = mo.state(start)
    get_model, set_model = mo.state(start)
    get_flops, set_flops = mo.state(start)
    get_tokens, set_tokens = mo.state(start)
    return (
        alarm,
        get_all,
        get_state,
        get_flops,
        get_model,
        get_tokens,
        set_all,
        set_state,
        set_flops,
        set_model,
        set_tokens,
        start,
    )


@app.cell
def _(set_all, set_state, set_flops, set_model, set_tokens, start):
    # A cell that names a getter runs again, and makes its controls anew, under the hand that moves them: controls read
    # this instead.
    now = {"state": start}

    def keep(after):
        now["state"] = after
        set_state(after)

    def turn(name, value):
        """A slider moved: the state follows, and the controls that depend on it."""
        before = now["state"]
        after = before.moved(name, value)
        keep(after)
        if name == "tokens":
            set_flops(after)
        elif name in ("flops", "params_active"):
            set_tokens(after)
        if before.model != after.model:
            set_model(after)

    def choose(after):
        """Another design: all controls are made anew."""
        keep(after)
        for setter in (set_all, set_model, set_flops, set_tokens):
            setter(after)

    return choose, keep, now, turn


@app.cell
def _(KNOBS, mo, turn):
    def slider(name, state):
        # Its steps by their numbers: the largest sizes are no whole numbers to a browser.
        steps, at = KNOBS[name].steps(getattr(state, name))
        return mo.ui.slider(
            0, len(steps) - 1, 1, value=at, full_width=True, on_change=lambda step: turn(name, steps[int(step)])
        )

    return (slider,)


@app.cell
def _(KNOBS, get_all, slider):
    sliders = {name: slider(name, get_all()) for name in KNOBS if name not in ("flops", "tokens")}
    return (sliders,)


@app.cell
def _(get_flops, slider):
    flops_slider = [slider("flops", get_flops())]
    return (flops_slider,)


@app.cell
def _(get_tokens, slider):
    tokens_slider = [slider("tokens", get_tokens())]
    return (tokens_slider,)


@app.cell
def _(CATALOGUE, choose, get_model, mo, now):
    model_menu = [
        mo.ui.dropdown(
            options={"none": "", **{name: name for name in CATALOGUE}},
            value=get_model().model or "none",
            label="published model",
            full_width=True,
            on_change=lambda name: choose(now["state"].like(name or "")),
        )
    ]
    return (model_menu,)


@app.cell
def _(keep, mo, now, available, page, replace, start):
    law_menu = [
        mo.ui.dropdown(
            options={page.law_label(key, available): key for key in available.laws},
            value=page.law_label(start.law, available),
            label="law and coefficients",
            full_width=True,
            allow_select_none=False,
            on_change=lambda key: keep(replace(now["state"], law=key)),
        )
    ]
    return (law_menu,)


@app.cell
def _(PRESETS, choose, mo, now, available, view):
    def press(label, change):
        return mo.ui.button(label=label, on_click=lambda _: choose(change(now["state"])))

    def best(state):
        """The best size of this structure, where there is one."""
        found = view(state, available).ranges[0]
        return state if found.endless else state.moved("params_active", found.best)

    presets = [press(name, lambda state, name=name: state.preset(name)) for name in PRESETS]
    steps = [press("G → 1: dense", lambda state: state.dense()), press("to the best size", best)]
    return presets, steps


@app.cell
def _(get_state, mo):
    get_state()  # A file is of one state: another one asks again.
    make_config = mo.ui.run_button(label="make config.py")
    return (make_config,)


@app.cell
def _(
    alarm,
    flops_slider,
    get_state,
    law_menu,
    make_config,
    mo,
    model_menu,
    available,
    page,
    presets,
    sliders,
    steps,
    tokens_slider,
    view,
    told,
):
    controls = {**sliders, "flops": flops_slider[0], "tokens": tokens_slider[0]}
    try:
        # The link tells what differs from a page without one.
        seen = page.seen(view(get_state(), available), available)
    except ValueError as wrong:
        seen = page.alarm(told(wrong))
    mo.Html(
        page.whole(
            controls=page.controls(get_state(), controls, law_menu[0], model_menu[0], presets, steps, make_config),
            seen=(page.alarm(alarm) if alarm else "") + seen,
        )
    )
    return


@app.cell
def _(config, get_state, make_config, mo, page, told):
    mo.stop(not make_config.value, None)
    try:
        with mo.status.spinner("Looking for whole numbers; the first time takes some seconds."):
            text = config(get_state())
        saved = page.config_file(text, mo.download(text.encode(), filename="config.py", label="config.py"))
    except ValueError as wrong:
        saved = page.alarm(told(wrong))
    mo.Html(saved)
    return


if __name__ == "__main__":
    app.run()
