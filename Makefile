# pullgate. `make` lists the targets. CI runs `make test`, `make lint` and `make matrix`, and nothing else.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

# What --version prints. A release tarball without git sets them by hand.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
DATE ?= $(shell git log -1 --format=%cI 2>/dev/null || echo unknown)
# The public key of releases, in PKIX form and base64, which verify-release uses; make release sets it.
RELEASE_KEY ?=
LDFLAGS := -s -w $(addprefix -X github.com/pullgate/pullgate/internal/mechanics/program.,\
	Version=$(VERSION) Commit=$(COMMIT) Date=$(DATE) ReleaseKey=$(RELEASE_KEY))
# Without the traces of gRPC the linker drops the methods that nobody calls, a quarter of a program.
GOBUILD := go build -buildvcs=false -tags grpcnotrace -ldflags '$(LDFLAGS)'

# With the same flags, programs, tests and linters share the build cache. DWARF, which no program here keeps, would take
# a sixth of the time; with cgo, package net and all that needs it is another one. sort drops what make has set already
# if it runs itself.
export GOFLAGS := $(sort $(GOFLAGS) -trimpath -gcflags=all=-dwarf=false)
export CGO_ENABLED := 0
# A limit that few compilations reach; the others collect no garbage, which would take a twelfth of their time.
COMPILERS := GOGC=off GOMEMLIMIT=1500MiB

# For which machines programs and packages are built, and where to.
ARCH ?= $(shell go env GOARCH)
ARCHES ?= amd64 arm64
BIN ?= bin
DIST ?= dist
# The programs in packages and in the image, which are the same, in a folder for each architecture.
RELEASE_BIN = $(BIN)/.release
# What packages are called: the version without v, or for a commit that is not a release a version before all
# releases. Every file in them has the time of the commit.
RELEASE = $(shell [[ '$(VERSION)' =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.]+)?$$ ]] && echo yes)
SNAPSHOT = $(shell git log -1 --format=%cd.%h --date=format:%Y%m%d%H%M%S 2>/dev/null || echo dev)
PACKAGE_VERSION ?= $(if $(RELEASE),$(subst -,~,$(VERSION:v%=%)),0.0.0~$(SNAPSHOT))
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

# Where `make install` puts things, below DESTDIR.
PREFIX ?= /usr/local
UNITDIR ?= $(PREFIX)/lib/systemd/system

# Which nodes of e2e-node, and which scenarios, by patterns of their names: KUBELET=1.34 RUNTIME=containerd-2.4
# RUN=tenants. Without KUBELET and RUNTIME it is the node of make e2e, without RUN all scenarios.
KUBELET ?=
RUNTIME ?=
RUN ?=

FUZZTIME ?= 30s
BENCH ?= .
# What make bench measures, and more flags for it, such as BENCHFLAGS='-pods 300 -rounds 15'.
PARTS ?= calls,start,pods
BENCHFLAGS ?=

# With the file of a key, programs in the image have a signature beside them, and the image has one.
SIGNING_KEY ?=
export SIGNING_KEY

SERVICES := $(notdir $(wildcard systemd/*.service))
# What is installed on nodes. pullgate-dispatcher runs in pods, from the image, which has all programs.
PROGRAMS := $(filter-out pullgate-dispatcher,$(notdir $(patsubst %/,%,$(wildcard cmd/*/))))

# Packages whose sweeps and random tests run in part under the race detector; make race runs them whole without it.
SAMPLED := $(addprefix ./internal/,records records/internal/boltfile policies/restriction operator/nodeenable \
	gate/podsource policies/policyd/webhook) ./pkg/tracker
# The same for single tests of other packages, and tests that do not run under the race detector.
SAMPLED_TESTS := TestGateBeforeCRIO|TestDecisionsOverTheSocket|TestForwarding.*IsTransparent|Test.*NeverShareAResult
SAMPLED_TESTS := $(SAMPLED_TESTS)|TestAPodCannotGuessPasswordsByThousands|TestSchedules
SAMPLED_TESTS := $(SAMPLED_TESTS)|Test(CostOf|AmplificationIn)CEL
SAMPLED_TESTS := $(SAMPLED_TESTS)|TestMemoryOf15000Nodes|TestManyConnectionsOfOneProcessToTheCRI
SAMPLED_TESTS := $(SAMPLED_TESTS)|TestMemoryOf(HostileSignatures|LargeAttestations|ConditionsOnAttestations)
SAMPLED_TESTS := $(SAMPLED_TESTS)|TestReadBoundsFilesAndBytes|TestDefaultsKeepWhatAPodHas

# The modules of this repository, each linted and kept tidy by itself.
MODULES := . e2e e2e/bench .ci/checks
GOLANGCI := GOGC=400 go tool -modfile=$(CURDIR)/.ci/tools.mod golangci-lint
NFPM := go tool -modfile=$(CURDIR)/.ci/nfpm.mod nfpm
BUF := go tool -modfile=$(CURDIR)/.ci/buf.mod buf
# Shows tests as they run, and what those that failed have printed once more at the end.
GOTESTSUM := go tool -modfile=$(CURDIR)/.ci/tools.mod gotestsum --format standard-verbose --hide-summary skipped -- \
	-vet=off
SCRIPTS := $(shell grep -lE '^\#!.*\b(ba)?sh\b' .ci/* systemd/packaging/* 2>/dev/null)

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: ## show the main job on a real containerd and registry, as root; removes what it made
	@[ "$$(id -u)" = 0 ] || \
		{ echo 'make demo: run it as root: it starts a containerd, and installs what is missing for that' >&2; exit 1; }
	@.ci/setup demo
	@$(MAKE) --no-print-directory build
	cd e2e && go run ./demo

.PHONY: test
test: setup ## run every kind of test once, as root
	@.ci/steps test race model crash e2e

.PHONY: matrix
matrix: setup build ## run scenarios on every other kubelet and runtime, cosign and critest, as root
	cd e2e && NODES=matrix $(GOTESTSUM) -tags e2e -count=1 -timeout 60m -parallel 32 \
		-run '^(TestNode|TestOracle|TestCritest)$$' ./kubelets ./signatures ./critest

.PHONY: unit
unit: ## run the short tests; takes seconds
	go test -short -timeout 5m -exec '$(CURDIR)/.ci/in-memory' ./...

# Programs with the race detector sleep for a second when they end, unless they are told not to, and many tests wait for
# others. golangci-lint runs go vet.
.PHONY: race
race: ## run all tests of the main module under the race detector
	CGO_ENABLED=1 $(COMPILERS) GORACE=atexit_sleep_ms=20 PULLGATE_MODEL_STEPS=5000 PULLGATE_SCHEDULES=200 \
		go test -race -vet=off -count=1 -p 3 -parallel 4 -timeout 15m -exec '$(CURDIR)/.ci/in-memory' ./...
	$(COMPILERS) go test -vet=off -count=1 -p 3 -timeout 10m -exec '$(CURDIR)/.ci/in-memory' $(SAMPLED)
	$(COMPILERS) go test -vet=off -count=1 -p 3 -parallel 4 -timeout 10m -exec '$(CURDIR)/.ci/in-memory' \
		-run '^($(SAMPLED_TESTS))$$' ./internal/gate ./internal/daemon ./internal/policies/{condition,policyfiles,policyd/verify} \
		./internal/fleet/dispatcher ./pkg/criproxy

.PHONY: model
model: ## run a million random operations, and check that no pod uses an image without access
	PULLGATE_MODEL_STEPS=1000000 go test -count=1 -timeout 10m -v -run '^TestModel$$' ./internal/gate

.PHONY: nightly
nightly: build ## run the long forms of model, proxy, store, node and fleet tests, as root; takes four hours
	PULLGATE_SCHEDULES=100000 PULLGATE_STARVATION=10m go test -count=1 -timeout 60m -v ./pkg/criproxy \
		-run '^(TestSchedules|Test(WaitingCalls|Connections)StopNoOtherCall|TestKubeletBesideATenantThatWaits)$$'
	PULLGATE_STARVATION=10m go test -count=1 -timeout 10m -v -run '^TestWaitingPullsDelayNoOtherPod$$' ./internal/gate
	PULLGATE_FLIPS=20000 go test -count=1 -timeout 30m -v -run '^TestFlippedByteOfTheStoreOpensNoImage$$' ./pkg/tracker
	cd e2e && PULLGATE_FLEET=1000 PULLGATE_FLEET_REST=30m go test -tags e2e -count=1 -timeout 60m -v -run '^TestFleet$$' \
		./podsource
	go test -count=1 -timeout 30m ./internal/operator/nodeinstall -all
	cd e2e && PULLGATE_INTERRUPTIONS=all go test -tags e2e -count=1 -timeout 90m -v -run '^TestNodeInstallInterrupted$$' \
		./systemd
	cd e2e && PULLGATE_FLOOD=containerd go test -tags e2e -count=1 -timeout 60m -v -run '^TestDeniedPodsMakeFewEvents$$' \
		./podsource
	cd e2e && PULLGATE_OUTAGE=10m go test -tags e2e -count=1 -timeout 30m -v -run '^TestFleet$$' ./fleet
	@for i in {1..100}; do echo "==> nightly: make model, run $$i of 100"; $(MAKE) model; done

.PHONY: crash
crash: ## kill the daemon at every crash point and check that nothing unproved is allowed
	go test -tags crashpoint -count=1 -timeout 15m -exec '$(CURDIR)/.ci/in-memory' -run 'Crash|Kill' \
		./internal/records/... ./internal/daemon ./internal/mechanics/crashpoint

# What takes longest begins first.
.PHONY: e2e
e2e: build ## run built binaries against a real containerd, registry, kube-apiserver and kubelet, as root
	cd e2e && $(GOTESTSUM) -tags e2e -count=1 -timeout 60m -p 3 -parallel 16 ./kubelets ./fleet ./systemd . ./release ./...
	cd e2e/bench && go test -count=1 .

.PHONY: e2e-node
e2e-node: build ## run scenarios of tenants under a real kubelet, as root; KUBELET, RUNTIME and RUN select
	cd e2e && KUBELET='$(KUBELET)' RUNTIME='$(RUNTIME)' SCENARIO='$(RUN)' \
		$(GOTESTSUM) -tags e2e -count=1 -timeout 60m -parallel 32 -run '^TestNode$$' ./kubelets

.PHONY: fuzz
fuzz: ## fuzz every target for FUZZTIME (30s)
	.ci/fuzz $(FUZZTIME)

.PHONY: bench
bench: build ## measure calls, starts and pods on a containerd, and write docs/performance, as root; PARTS selects
	.ci/install-debs
	cd e2e/bench && go build -o '$(abspath $(BIN))/.bench' . && '$(abspath $(BIN))/.bench' -parts '$(PARTS)' \
		-pullgated '$(abspath $(BIN))/pullgated' -out '$(CURDIR)/docs/performance/performance.md' $(BENCHFLAGS)

.PHONY: benchmarks
benchmarks: ## run the benchmarks of the packages; BENCH selects
	go test -run '^$$' -bench '$(BENCH)' -benchmem ./...

.PHONY: build
build: ## build the programs into bin/
	$(COMPILERS) GOARCH=$(ARCH) $(GOBUILD) -o '$(BIN)/' ./cmd/...

.PHONY: man
man: ## write manual pages and shell completion into bin/man and bin/completion
	rm -rf '$(BIN)/man' '$(BIN)/completion' && mkdir -p '$(BIN)/completion'
	GOOS= GOARCH= $(GOBUILD) -o '$(BIN)/.pullgatectl' ./cmd/pullgatectl
	'$(BIN)/.pullgatectl' docs man '$(BIN)/man' docs
	echo '.so man1/pullgatectl-why.1' > '$(BIN)/man/kubectl-pullgate.1'
	for s in bash zsh fish; do '$(BIN)/.pullgatectl' completion $$s > '$(BIN)/completion/'$$s; done

.PHONY: install
install: build man ## install programs, documentation and units below DESTDIR; enables nothing
	install -d '$(DESTDIR)$(PREFIX)/bin' '$(DESTDIR)$(UNITDIR)'
	for s in 1 5 8; do install -D -m 0644 -t '$(DESTDIR)$(PREFIX)'/share/man/man$$s '$(BIN)'/man/*.$$s; done
	.ci/install-docs '$(DESTDIR)$(PREFIX)/share/doc/pullgate'
	install -D -m 0644 '$(BIN)/completion/bash' '$(DESTDIR)$(PREFIX)/share/bash-completion/completions/pullgatectl'
	install -D -m 0644 '$(BIN)/completion/zsh' '$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_pullgatectl'
	install -D -m 0644 '$(BIN)/completion/fish' '$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/pullgatectl.fish'
	install -m 0755 $(PROGRAMS:%='$(BIN)/%') '$(DESTDIR)$(PREFIX)/bin/'
	ln -sf pullgatectl '$(DESTDIR)$(PREFIX)/bin/kubectl-pullgate'
	install -m 0644 systemd/*.socket '$(DESTDIR)$(UNITDIR)/'
	for s in $(SERVICES); do \
		sed 's|/usr/local/bin/|$(PREFIX)/bin/|' systemd/$$s > '$(DESTDIR)$(UNITDIR)/'$$s && \
		chmod 0644 '$(DESTDIR)$(UNITDIR)/'$$s; done
	install -D -m 0644 systemd/pullgate-policyd.sysusers '$(DESTDIR)$(PREFIX)/lib/sysusers.d/pullgate-policyd.conf'

.PHONY: uninstall
uninstall: ## remove what make install installed below DESTDIR; state and configuration stay
	rm -f $(PROGRAMS:%='$(DESTDIR)$(PREFIX)/bin/%') '$(DESTDIR)$(PREFIX)/bin/kubectl-pullgate' \
		$(SERVICES:%.service='$(DESTDIR)$(UNITDIR)/%.socket') $(SERVICES:%='$(DESTDIR)$(UNITDIR)/%')
	rm -f '$(DESTDIR)$(PREFIX)/lib/sysusers.d/pullgate-policyd.conf'
	rm -f '$(DESTDIR)$(PREFIX)/share/man/'man*/{pullgate*,kubectl-pullgate*} && rm -rf '$(DESTDIR)$(PREFIX)/share/doc/pullgate'
	rm -f '$(DESTDIR)$(PREFIX)/share/bash-completion/completions/pullgatectl' \
		'$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_pullgatectl' \
		'$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/pullgatectl.fish'

.PHONY: package
package: ## build .deb, .rpm and a bill of materials for ARCHES into dist/
	BIN='$(RELEASE_BIN)' .ci/package '$(DIST)' '$(PACKAGE_VERSION)' $(ARCHES)

.PHONY: image
image: ## build a container image for ARCHES into dist/, as an OCI image layout
	for a in $(ARCHES); do $(MAKE) build ARCH=$$a BIN='$(RELEASE_BIN)/'$$a; done
	VERSION='$(VERSION)' COMMIT='$(COMMIT)' .ci/image '$(DIST)' '$(PACKAGE_VERSION)' $(ARCHES:%='$(RELEASE_BIN)/%')

.PHONY: chart
chart: ## build the Helm chart into dist/
	VERSION='$(VERSION)' .ci/chart '$(DIST)' '$(PACKAGE_VERSION)'

.PHONY: repository
repository: ## make dist/ a repository of apt and dnf; with GPG_KEY a signed one
	.ci/repository '$(DIST)'

.PHONY: sign
sign reproducible: export VERSION := $(VERSION)
sign reproducible: export COMMIT := $(COMMIT)
sign reproducible: export DATE := $(DATE)
sign reproducible: export PACKAGE_VERSION := $(PACKAGE_VERSION)
sign reproducible: export ARCHES := $(ARCHES)
sign reproducible: export RELEASE_KEY := $(RELEASE_KEY)
sign: ## sign what is in dist/ with the key in the file SIGNING_KEY, without a network
	.ci/sign '$(DIST)' '$(PACKAGE_VERSION)'

.PHONY: vulnerabilities
vulnerabilities: ## look for known vulnerabilities with govulncheck, if GOVULNDB names a copy of its database
	.ci/vulnerabilities

.PHONY: reproducible
reproducible: ## build what is in dist/ again, in another folder, and check that the bytes are the same
	.ci/reproducible '$(DIST)'

.PHONY: release
release: ## go through the checklist of docs/design/releasing.md for VERSION
	.ci/release '$(VERSION)'

.PHONY: lint
lint: setup ## check everything that can be checked without running it
	@.ci/steps lint golangci checks monitoring tidy-check generate-check proto scripts units

.PHONY: golangci
golangci: ## run golangci-lint over every module
	$(COMPILERS) go tool -modfile='$(CURDIR)/.ci/tools.mod' -n golangci-lint >/dev/null
	for m in $(MODULES); do (cd $$m && $(GOLANGCI) run --config '$(CURDIR)/.golangci.yml' ./...); done

.PHONY: checks
checks: ## check imports, links, documentation of what operators see, and the length of lines
	cd .ci/checks && go test -count=1 ./...

.PHONY: monitoring
monitoring: build ## test the alert rules, and compare them and the dashboard with a scrape of the daemon
	promtool check rules docs/monitoring/alerts.yml
	promtool test rules docs/monitoring/alerts_test.yml
	cd e2e && go test -count=1 ./monitoring

.PHONY: tidy-check
tidy-check: ## check that every go.mod is tidy
	for m in $(MODULES); do (cd $$m && go mod tidy -diff); done

.PHONY: generate-check
generate-check: ## check that generated files are up to date
	.ci/unchanged make generate

.PHONY: proto
proto: ## check that the APIs follow the rules and stay compatible
	cd proto && $(BUF) lint && $(BUF) format --diff --exit-code && $(BUF) breaking --against baseline.binpb

.PHONY: scripts
scripts: ## run shellcheck over the scripts
	shellcheck $(SCRIPTS)

.PHONY: units
units: ## check the units with systemd
	.ci/verify-units

.PHONY: fmt
fmt: ## format every module
	for m in $(MODULES); do (cd $$m && $(GOLANGCI) fmt --config '$(CURDIR)/.golangci.yml' ./...); done

.PHONY: generate
generate: ## regenerate the generated files
	for m in $(MODULES); do (cd $$m && go generate ./...); done

.PHONY: setup
setup: ## install the Debian packages that tests and lint need; needs root if one is missing
	.ci/setup

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist .cache
