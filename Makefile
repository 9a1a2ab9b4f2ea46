# Every verb is one line over the command gpucomm. `make` alone prints this help.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help build test test-image test-matrix prove push pull run selftest list show why coverage lint lock render engine clean relock

TARGET ?= cu121
PYTHON ?= python3
GPUCOMM := .venv/bin/gpucomm
ARGS ?=

help: ## this help
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  variables: TARGET=cu121 (alias, cell id, glob, all)  ARGS=…  REGISTRY=host:port/name  WHEELHOUSE=dir  ENGINE=none"

.venv/ready: requirements.lock pyproject.toml builder/make-venv
	@PYTHON="$(PYTHON)" builder/make-venv

build: .venv/ready ## build and verify the images of TARGET
	@$(GPUCOMM) build "$(TARGET)" $(ARGS)

test: .venv/ready ## lint, drift gate and every test
	@builder/run-tests $(ARGS)

test-image: .venv/ready ## run the image tests against the local images of TARGET
	@$(GPUCOMM) test-image "$(TARGET)" $(ARGS)

test-matrix: .venv/ready ## build and verify one real cell of every line, go on where it was interrupted
	@$(GPUCOMM) sweep $(ARGS)

prove: test-matrix ## test-matrix, and every stage of the standard Debian cells that needs no torch
	@.venv/bin/python -m pytest tests/prove -v

push: .venv/ready ## send the verified images of TARGET to the registry
	@$(GPUCOMM) push "$(TARGET)" $(ARGS)

pull: .venv/ready ## take the published images of TARGET from the registry
	@$(GPUCOMM) pull "$(TARGET)" $(ARGS)

run: .venv/ready ## run a shell, or ARGS, in the image of TARGET
	@$(GPUCOMM) run "$(TARGET)" $(ARGS)

selftest: .venv/ready ## run gpucomm-selftest in the image of TARGET
	@$(GPUCOMM) selftest "$(TARGET)" $(ARGS)

list: .venv/ready ## list the cells of the matrix
	@$(GPUCOMM) list $(ARGS)

show: .venv/ready ## show everything about the cells of TARGET, and how to run them
	@$(GPUCOMM) show "$(TARGET)" $(ARGS)

why: .venv/ready ## say why TARGET is as it is, or why it cannot exist
	@$(GPUCOMM) why "$(TARGET)" $(ARGS)

coverage: .venv/ready ## report what no standard cell has
	@$(GPUCOMM) coverage $(ARGS)

lint: .venv/ready ## ruff, mypy, hadolint, shellcheck, workflow schema, zizmor, drift gate
	@builder/lint

lock: .venv/ready ## resolve every wheel of every cell into matrix.lock
	@$(GPUCOMM) lock $(ARGS)

render: .venv/ready ## write images/ from matrix.yaml, matrix.lock and templates/
	@$(GPUCOMM) render $(ARGS)

engine: .venv/ready ## make sure that a Docker engine answers
	@$(GPUCOMM) engine ensure

clean: .venv/ready ## remove the local images and logs of TARGET
	@$(GPUCOMM) clean "$(TARGET)" $(ARGS)

relock: .venv/ready ## pin the builder's own packages anew
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --extra dev \
		--no-emit-index-url --no-annotate --custom-compile-command "make relock" \
		pyproject.toml --output-file requirements.lock
