# The locked packages, each checked by its hash, and then from these alone the project with the extras that are asked for.
FROM python:3.13-slim AS build
WORKDIR /app
RUN python -m venv .venv
COPY requirements.lock ./
RUN .venv/bin/python -m pip wheel --quiet --disable-pip-version-check --require-hashes --no-deps -w wheels -r requirements.lock
COPY pyproject.toml hatch_build.py README.md LICENSE config.yaml ./
COPY proxy ./proxy
RUN .venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w wheels .
# Empty: the plain package.
ARG EXTRAS=all
RUN .venv/bin/python -m pip install --quiet --no-index --find-links wheels "accordion-proxy${EXTRAS:+[$EXTRAS]}" \
    && .venv/bin/python -m pip uninstall --quiet --yes pip \
    && touch .venv/container-image
# Never used here: tests of packages, LiteLLM's own dashboard, and its library in Rust, which it does without.
RUN cd .venv/lib/python3*/site-packages \
    && find . -depth -type d -name tests -exec rm -r {} + \
    && rm -rf litellm/proxy/_experimental/out litellm/rust_bridge/_native*.so

FROM python:3.13-slim
WORKDIR /app
RUN useradd --no-create-home --uid 10001 --home-dir /data accordion && install -d -o accordion -g accordion /data
COPY --from=build /app/.venv ./.venv
COPY config.yaml ./
ENV PATH=/app/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    ACCORDION_HOST=0.0.0.0 \
    ACCORDION_STORE=sqlite:////data/accordion.db \
    ACCORDION_LOG=json
USER accordion
VOLUME /data
EXPOSE 8787
HEALTHCHECK --interval=15s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import os, urllib.request as r; r.build_opener(r.ProxyHandler({})).open(f'http://127.0.0.1:{os.environ.get(\"ACCORDION_PORT\", \"8787\")}/healthz', timeout=2)"]
CMD ["accordion", "serve"]
