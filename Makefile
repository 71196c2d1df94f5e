# The front door. Every target says what it does; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help venv dev lock identity demo programs test acceptance acceptance-arm64 nightly check lint unit image bundle gpu-limit collection release clean
BOARDS ?= 1
LAB ?= demo
BASE ?=
BUNDLE ?= $(CURDIR)/bundle
K3S ?=
LAB_K3S ?=
VERSION ?=
OWNER ?=
UPGRADE ?=
ANSIBLE ?=
CHECK ?=
SHARD ?=
JUNIT ?= dist/junit.xml
KEY ?=
PYTHON := .venv/bin/python
CONTROLLER := tools images playbooks .collections/ansible_collections/jetson_k3s/cluster/plugins
say = @printf '\033[1m==> %s\033[0m\n' $(1)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/.%: pyproject.toml $(wildcard tools/requirements/*.txt) tools/bootstrap.sh
	$(call say,"Python environment in .venv for '$*' (installs python3-venv by apt where it is missing)")
	sh tools/bootstrap.sh $*

# The kubelet's messages, and for mypy their types, which are not committed.
STUBS := $(patsubst %.proto,%_pb2.pyi,$(wildcard plugin/tegra_device_plugin/*/*.proto))
plugin/tegra_device_plugin/%_pb2.pyi: plugin/tegra_device_plugin/%.proto | .venv/.dev
	$(PYTHON) -m grpc_tools.protoc --proto_path=plugin --python_out=plugin --pyi_out=plugin $<

venv: ## create or refresh .venv with what the playbooks need, Ansible: make venv [ANSIBLE=2.19]
	$(call say,"Ansible in .venv (installs python3-venv by apt where it is missing)")
	sh tools/bootstrap.sh $(if $(ANSIBLE),ansible-$(ANSIBLE),refresh)

dev: .venv/.dev $(STUBS) ## the same with what the image, tests and linters need, too

lock: .venv/.lock ## write the lists of packages and hashes again, from pyproject.toml: make lock [UPGRADE=NAME|all]
	$(PYTHON) -m tools.lock $(if $(UPGRADE),--upgrade "$(UPGRADE)")

demo: dev ## the main job on virtual boards: make demo [BOARDS=3] [LAB_K3S=v1.36.5+k3s1|PATH]
	$(call say,"$(BOARDS) fresh virtual board(s); the first time K3s is downloaded or compiled (about 7 minutes)")
	$(PYTHON) -m tests.lab down --name $(LAB)
	$(PYTHON) -m tests.lab up --name $(LAB) --boards $(BOARDS) $(if $(LAB_K3S),--k3s "$(LAB_K3S)")
	$(call say,"ansible-playbook -i .lab/$(LAB)/inventory.ini playbooks/site.yml")
	.venv/bin/ansible-playbook -i .lab/$(LAB)/inventory.ini playbooks/site.yml
	$(call say,"the boards stay up: look around with '$(PYTHON) -m tests.lab shell --name $(LAB) jetson-1'; remove them with 'make clean'")

check: lint unit ## the fast part: lint, types, unit and conformance tests

lint: dev
	$(call say,"linters and types")
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/mypy --python-version 3.10 --exclude lock.py $(CONTROLLER) # Ubuntu 22.04, also that of JetPack 6
	.venv/bin/lint-imports --no-logo --no-cache
	.venv/bin/deptry --no-ansi plugin
	.venv/bin/deptry --no-ansi --ignore DEP004 . # the groups, too: DEP004 is an import of theirs
	.venv/bin/yamllint --strict .
	$(PYTHON) -m tools.words
	$(PYTHON) -m tools.lock --check
	.venv/bin/shellcheck jetson-k3s install.sh tools/bootstrap.sh
	PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/ansible-lint --offline

# In the order of folders: xdist would begin files with few tests last, and those of tests/fleet take longest.
unit: dev
	$(call say,"unit and conformance tests; the first time this installs other releases of Ansible")
	$(PYTHON) -m tests.ansible_core
	$(PYTHON) -m pytest -q -n 2 --dist loadscope --no-loadscope-reorder -o faulthandler_timeout=300 --durations=20 --suite=unit tests

programs: dev ## K3s for the virtual boards, downloaded, or compiled once (about 7 minutes)
	$(call say,"K3s for virtual boards")
	$(PYTHON) -m tests.lab.k3s

# In the order of folders: the cluster's story takes longest, and begins first.
test: check programs ## what CI runs: check, then boards with K3s: one, three, two Molecule scenarios; the chart, the real jtop service
	$(call say,"tests on virtual boards")
	$(PYTHON) -m pytest -v -n 2 --dist loadscope --no-loadscope-reorder --durations=20 --suite=lab tests

acceptance: programs ## all other tests (hours): Molecule; containerd; sharing; broken boards; several servers; power cuts; claims; the image
	$(call say,"acceptance tests on virtual boards")
	$(PYTHON) -m pytest -v -n 2 --dist loadscope --suite=acceptance tests

acceptance-arm64: dev ## site.yml on an emulated arm64 board with a kernel and a device tree of its own (long)
	$(call say,"acceptance tests on emulated arm64 boards; the first time this compiles K3s for arm64")
	$(PYTHON) -m pytest -v -n 2 --dist loadscope --suite=arm64 tests

nightly: programs ## one of the shards of tests/shards.json, as CI runs it each night: make nightly SHARD=claims [JUNIT=FILE]
	$(call say,"the tests of the shard $(SHARD)")
	$(PYTHON) -m pytest -v -n 2 --dist loadscope --junit-xml="$(JUNIT)" $$($(PYTHON) -m tools.nightly arguments "$(SHARD)")

image: .venv/.image ## the plugin's image for arm64 and amd64 in dist/: make image [BASE=python:3.11-slim-bookworm]
	$(call say,"plugin image for arm64 and amd64")
	$(PYTHON) -m images.arm64.build --output dist $(if $(BASE),--base $(BASE))

dist/tegra-device-plugin-arm64.tar.gz:
	$(MAKE) image

bundle: venv dist/tegra-device-plugin-arm64.tar.gz ## the offline bundle: make bundle [BUNDLE=./bundle] [K3S=v1.34.12+k3s1]
	$(call say,"offline bundle in $(BUNDLE)")
	.venv/bin/ansible-playbook playbooks/bundle.yml -e jetson_k3s_bundle="$(BUNDLE)" $(if $(K3S),-e k3s_version=$(K3S))

gpu-limit: .venv/.image ## the library that limits GPU memory in dist/gpu-limit/{amd64,arm64}/
	$(PYTHON) -m images.arm64.gpu_limit

collection: dev ## the playbooks and roles as an Ansible collection in dist/
	$(PYTHON) -m release.collection

identity: ## name the owner of the project in each address, before the first release: make identity OWNER=ACCOUNT
	@$(PYTHON) -m release.identity "$(OWNER)"

release: dev ## the next version in dist/, signed, committed, tagged, not pushed: make release VERSION=0.2.0 KEY=~/.ssh/jetson-k3s-release [CHECK=1]
	@$(PYTHON) -m release $(if $(CHECK),--check) $(if $(KEY),--key "$(KEY)") "$(VERSION)"

clean: ## remove every virtual board, container, volume, network and process of the lab (caches, dist and reports stay)
	@if [ -x $(PYTHON) ]; then $(PYTHON) -m tests.lab down --all; fi
	rm -rf build
