# SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
# SPDX-License-Identifier: Apache-2.0

# `make` lists the targets. Everything below runs on a machine that has Go, make and (for tests and the demo) root.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# Nothing in the caller's shell may change what is built or tested.
export CGO_ENABLED := 1
export GOFLAGS     := -buildvcs=false
export GOWORK      := off
export LC_ALL      := C
unexport CDPATH CONTAINERD_ADDRESS CONTAINERD_NAMESPACE CONTAINERD_SNAPSHOTTER CONTAINER_RUNTIME \
	CGO_CFLAGS CGO_LDFLAGS GOAMD64 GOARCH GOARM64 GODEBUG GOEXPERIMENT GOFIPS140 GOMAXPROCS GOOS GOTRACEBACK \
	GRPC_ADDRESS LISTEN_FDS LISTEN_PID MAX_SHIM_VERSION NAMESPACE NOTIFY_SOCKET SCHED_CORE SHIM_TEST_RUNTIME SHIM_TEST_ISOLATION TMPDIR TTRPC_ADDRESS
# The two that a shell without a login may lack: sudo and CI drop them.
export PATH := $(PATH):/usr/local/go/bin:/usr/sbin:/sbin
export HOME := $(or $(HOME),/root)

GO       ?= go
PREFIX   ?= /usr/local
DESTDIR  ?=
FUZZTIME ?= 5m
TOTALS   ?=
RUNTIME  ?= io.containerd.sandbox.v1
BENCHFLAGS ?=
WRITE    ?=
AGAINST  ?=
RUNTIMES ?= io.containerd.runc.v2 io.containerd.sandbox.v1
REGEX    ?= .
PKGS     ?= ./pkg/... ./integration/containerd ./integration/cri ./integration/fakecontainerd
RUN      ?=
IMAGE    ?= $(NAME):latest
# Quoted, since an expression may have what means something to the shell.
PACKAGES = $(PKGS:%='%')
SMOKE    := ./pkg/cgroup './pkg/stats=V2|Reader' './pkg/ociruntime=Update|EveryField|TestExec|TestCgroupMount|Device|Confines'
SMOKE_L3 := TestRun_ReportsItsExit|TestExec_RunsInTheContainer|TestUpdate_ReachesTheCgroup|TestStats_Count

NAME     := containerd-shim-sandbox-v1
# ARCH=arm64 builds for arm64; on another machine into a directory of its own, by Debian's compiler.
HOSTARCH := $(shell $(GO) env GOHOSTARCH 2>/dev/null)
ARCH     := $(HOSTARCH)
BIN      := bin$(if $(filter-out $(HOSTARCH),$(ARCH)),/$(ARCH))
BINARY   := $(CURDIR)/$(BIN)/$(NAME)
TAGS     := seccomp
# The file VERSION has the version of the last release. Other builds have their commit behind it.
VERSION  := $(file <VERSION)
COMMIT   := $(shell git describe --always --dirty --exclude='*' 2>/dev/null)
RELEASE  ?=
SHOWN    := $(VERSION)$(if $(RELEASE),,$(COMMIT:%=+%))
REVISION := $(shell git rev-parse --verify -q HEAD 2>/dev/null || echo unknown)
# What GODEBUG is without the variable: no transparent huge pages for the heap (docs/decisions/0006-memory-of-a-shim.md).
GODEBUGS := disablethp=1
LDFLAGS  := -s -w -buildid= -X main.version=$(SHOWN) -X main.revision=$(REVISION) -X runtime.godebugDefault=$(GODEBUGS)

# Runs a command that builds for ARCH.
CROSS    := GO=$(GO) GOARCH=$(ARCH) hack/musl.sh

# Linters run with `go run module@version`: pinned, but their own dependencies stay out of go.mod.
GOLANGCI    := $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
CHECKLOCKS  := $(GO) run gvisor.dev/gvisor/tools/checklocks/cmd/checklocks@v0.0.0-20260905035102-160fafc42237
GOVULNCHECK := $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.8.0
# The stricter second configuration looks only at what changed since this commit.
LINT_BASE   ?= $(shell git rev-parse --verify -q origin/main || git rev-parse --verify -q HEAD)

.PHONY: help build dynamic install uninstall deps tools test test-unit test-inits integration test-v2 test-systemd test-kernel test-node smoke-vm test-arm64 smoke-arm64 demo bench conformance fuzz cover fmt lint vuln tidy check clean install-node uninstall-node image bench-v2

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# Without musl, or what builds a libseccomp for it, the system's libraries will do, but not for a release.
build: ## build bin/containerd-shim-sandbox-v1 (musl, seccomp, no shared libraries) and bin/sandboxctl; ARCH=arm64: bin/arm64/…
	@command -v $(GO) >/dev/null || { echo "$(GO) is absent. hack/deps.sh says what a build needs, and installs it for root." >&2; exit 1; }
	@$(if $(RELEASE),,SHIM_LIBC=any) $(CROSS) sh -c '$(GO) build -trimpath -tags "$(TAGS) netgo osusergo" \
		-ldflags "$(LDFLAGS) -extldflags=$$SHIM_LINK" -o $(BIN)/$(NAME) ./cmd/$(NAME) && \
		if [ -n "$$SHIM_LINK" ] && readelf -lW $(BIN)/$(NAME) | grep INTERP; then echo "$(BIN)/$(NAME) is not static" >&2; exit 1; fi'

	@$(TOOLBUILD) -o $(abspath $(BIN))/$(TOOL) .

# The operator's tool is a module of its own, without C.
TOOL      := sandboxctl
TOOLBUILD  = cd cmd/$(TOOL); CGO_ENABLED=0 GOARCH=$(ARCH) $(GO) build -trimpath -ldflags "-s -w -buildid= -X main.version=$(SHOWN)"
.PHONY: sandboxctl
sandboxctl: ## build bin/sandboxctl alone
	@$(TOOLBUILD) -o $(abspath $(BIN))/$(TOOL) .

# What is packed must be that of a commit: its time is that of all files, and its bytes are the same for everyone who has
# the same compilers. SIGN is a command that is run in the directory, with the file of the sums as its last argument.
RELEASES := $(CURDIR)/bin/release
SIGN     ?=
.PHONY: release
release: ## bin/release: binaries, archives, packages, SBOMs and their sums, of a clean tree; SIGN= signs (docs/release.md)
	@test -z "$$(git status --porcelain)" || { git status --short >&2; echo "a release is made of a commit: the tree is not clean" >&2; exit 1; }
	@ARCH=arm64 hack/deps.sh
	rm -rf $(RELEASES) $(RELEASES).part
	for arch in amd64 arm64; do \
		$(MAKE) --no-print-directory build RELEASE=1 ARCH=$$arch BIN=bin/release.part/$$arch; done
	cd hack/release; $(GO) build -o $(CURDIR)/bin/release.part/release .
	GO=$(GO) SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) bin/release.part/release -out $(RELEASES) \
		amd64=bin/release.part/amd64 arm64=bin/release.part/arm64
	rm -rf $(RELEASES).part
	$(if $(SIGN),cd $(RELEASES) && $(SIGN) SHA256SUMS)

dynamic: ## build bin/containerd-shim-sandbox-v1 with the system's libc and libseccomp, as shared libraries: slower to start
	$(GO) build -trimpath -tags "$(TAGS)" -ldflags "$(LDFLAGS)" -o bin/$(NAME) ./cmd/$(NAME)

install: ## copy the built binaries to $(DESTDIR)$(PREFIX)/bin (builds them if they are absent)
	test -x $(BIN)/$(NAME) -a -x $(BIN)/$(TOOL) || $(MAKE) --no-print-directory build
	for file in $(NAME) $(TOOL); do to="$(DESTDIR)$(PREFIX)/bin/$$file"; install -D -m 0755 $(BIN)/$$file "$$to.part" && \
		sync "$$to.part" && mv -f "$$to.part" "$$to" || exit 1; done # containerd may start it at any time

uninstall: ## remove the installed binaries; refused while containers of the runtime run
	$(if $(DESTDIR),,UNINSTALLER='make uninstall-node' sh deploy/package/preremove.sh remove)
	rm -f "$(DESTDIR)$(PREFIX)/bin/$(NAME)" "$(DESTDIR)$(PREFIX)/bin/$(TOOL)"

# The binary and containerd's configuration, with a restart that is undone if containerd does not come back.
NODE_FLAGS ?=

install-node: ## this machine as a Kubernetes node: the binary, and its handlers for containerd (root); NODE_FLAGS=
	test -x bin/$(NAME) || $(MAKE) --no-print-directory build
	deploy/install.sh install --binary bin/$(NAME) --bindir "$(PREFIX)/bin" $(NODE_FLAGS)

uninstall-node: ## undo install-node; refused while containers of the runtime exist
	deploy/install.sh uninstall --bindir "$(PREFIX)/bin" $(NODE_FLAGS)

image: build ## the image of deploy/daemonset.yaml, by docker; IMAGE= names it; ARCH=arm64: for such nodes
	@! readelf -lW $(BIN)/$(NAME) | grep INTERP || { echo "$(BIN)/$(NAME) needs libraries of this machine: make deps, for musl" >&2; exit 1; }
	docker build --platform linux/$(ARCH) --build-arg BIN=$(BIN) --tag "$(IMAGE)" --file deploy/Dockerfile .

deps: ## check for the Debian packages a build and test need, for ARCH=arm64 too; install them when root
	@ARCH=$(ARCH) hack/deps.sh

tools: ## build containerd, ctr, the runc shim and runc for tests, demo and bench into the cache
	cd integration && $(GO) run ./cmd/tools

test: deps test-unit build integration ## unit and integration tests: needs root, Go and make, and Debian or Ubuntu

test-unit: ## unit tests of the shim, with the race detector
	umask 022; $(GO) test -race -shuffle=on -timeout 20m -tags "$(TAGS)" ./...
	cd cmd/$(TOOL); umask 022; $(GO) test -race -shuffle=on ./...
	cd hack/release; $(GO) test -shuffle=on ./...

# Mixtures of settings are made at random: as many as N, by SEED, which a failure prints.
N    ?= 500
ifndef SEED
SEED := $(shell date +%s)
endif
ALLINITS = SHIM_TEST_ALL_INITS=1 SHIM_TEST_INIT_MIXTURES=$(N) SHIM_TEST_INIT_SEED=$(SEED)
test-inits: deps ## all comparisons of inits with those of libcontainer, of which test-unit runs a part (root); N=, SEED=; ON=v2 or systemd
ifdef ON
	$(ALLINITS) $(MAKE) --no-print-directory test-$(ON) PKGS='./pkg/ociruntime=TestInit_|TestLauncher_' LIMIT=4h
else
	umask 022; $(ALLINITS) $(GO) test -count=1 -timeout 30m -tags "$(TAGS)" -run 'TestInit_|TestLauncher_' ./pkg/ociruntime
endif

# The tests of the shim. Those of the tools that measure, of deploy/, of the packages and of sandboxctl are in test-tools.
SHIMTESTS := ./containerd ./cri ./fakecontainerd ./harness
INTEGRATE  = cd integration; umask 022; SHIM_BINARY=$(BINARY) SANDBOXCTL_BINARY=$(wildcard $(CURDIR)/bin/$(TOOL)) $(GO) test -count=1 -timeout 25m
integration: ## the built binary against a fake and a real containerd (root); RUN= and PKGS=./integration/… choose
	@test -x bin/$(NAME) || { echo "bin/$(NAME) is absent: make build" >&2; exit 1; }
	@integration/cri/deps.sh
	@echo "NOT TESTED here: containerd 2.0 to 2.3; packages; clients; Kubernetes; other kernels; tools. make nightly has all."
	@echo "building containerd and runc for the tests (the first time takes minutes; they stay in the cache)"
	cd integration; $(GO) run ./cmd/tools -releases
	$(INTEGRATE) -run '$(RUN)' $(if $(filter file,$(origin PKGS)),$(SHIMTESTS),$(PKGS:./integration/%=./%))

# What a release hands over to its successor.
STATE := $(CURDIR)/cmd/$(NAME)/testdata/state/$(shell cat VERSION).json
.PHONY: record-state
record-state: deps build ## the state that a shim of this version hands over, for the tests of later ones (root)
	SHIM_RECORD_STATE=$(STATE) $(MAKE) --no-print-directory integration RUN=TestRecordState PKGS=./integration/containerd

.PHONY: test-tools test-libcontainer
test-tools: deps build ## bench, campaign and other tools of the tests, deploy/, the .deb, sandboxctl on a node (root)
	@integration/cri/deps.sh
	@integration/packages/root.sh bookworm >/dev/null
	cd integration; $(GO) run ./cmd/tools -releases
	list=$$(cd integration; $(GO) list ./... | grep -vE '/integration/(containerd|cri|fakecontainerd)$$'); $(INTEGRATE) $$list

test-libcontainer: deps build ## tests of execs once more, by libcontainer, as where the launcher cannot start them (root)
	@integration/cri/deps.sh
	export SHIM_TEST_EXEC=libcontainer; $(INTEGRATE) -run 'Exec|Terminal' ./containerd ./cri

# Parts of a night: NIGHTLY= chooses. Each has a log in bin/nightly.
NIGHTLY ?= vuln test-tools test-libcontainer test-inits conformance smoke-vm test-v2 test-systemd test-selinux test-node \
	test-kernel-5.10 test-kernel-6.12 test-kernel-7 test-arm64 test-releases test-shared test-packages test-clients test-kubernetes \
	campaign fuzz sweep bench
.PHONY: nightly
nightly: ## all that CI leaves out, with one line for each part (root); takes a night
	@mkdir -p bin/nightly; failed=; for part in $(NIGHTLY); do \
		target="$$part"; case "$$part" in test-kernel-*) target="test-kernel KERNEL=$${part#test-kernel-}" ;; campaign) target="campaign SHORT=1" ;; esac; \
		began=$$SECONDS; if $(MAKE) --no-print-directory $$target >"bin/nightly/$$part.log" 2>&1 </dev/null; then result=passed; \
		else result=FAILED; failed=1; fi; echo "$$part: $$result, $$((SECONDS - began)) s"; done; test -z "$$failed"

# All that is tested of containers and pods, where 50 share a shim.
.PHONY: test-shared
# CONFIG is the default configuration file of the shims of integration, campaign, test-kubernetes, conformance and sweep, such as
# CONFIG='Idle = "after=1s,pod"'. SHARED=1 is CONFIG='PodsPerShim = 50'.
CONFIG     ?= $(if $(SHARED),PodsPerShim = 50)
CONFIGDIR  := /etc/containerd-shim-sandbox-v1
CONFIGURED  = $(if $(CONFIG),unshare -m sh -c 'mkdir -p $(CONFIGDIR) && mount -t tmpfs tmpfs $(CONFIGDIR) && \
	printf "%s\n" "$$0" >$(CONFIGDIR)/config.toml && exec "$$@"' '$(CONFIG)')

test-shared: deps build ## containerd and CRI with PodsPerShim = 50 (root); RUN= chooses
	@integration/cri/deps.sh
	cd integration; $(GO) run ./cmd/tools
	cd integration; umask 022; SHIM_TEST_PODS_PER_SHIM=50 SHIM_BINARY=$(BINARY) SANDBOXCTL_BINARY=$(CURDIR)/bin/$(TOOL) \
		$(GO) test -p 1 -count=1 -timeout 30m -run '$(RUN)' ./containerd ./cri

.PHONY: test-releases
test-releases: deps build ## a release of each series of containerd, also 2.0 to 2.3, which are built for it (root); WRITE=1: tables of docs/compatibility.md
	@integration/cri/deps.sh
	cd integration; umask 022; export SHIM_TEST_RELEASES=all SHIM_BINARY=$(BINARY); $(GO) run ./cmd/tools -releases; \
		$(GO) test -p 1 -count=1 -v -timeout 30m -run TestVersions ./containerd ./cri $(if $(WRITE),-args -update)

.PHONY: test-packages
test-packages: deps build ## releases made twice, their packages on Debian 12 and 13, a build without root and tools (root); RUN= chooses
	@ARCH=arm64 hack/deps.sh
	@integration/packages/deps.sh
	cd integration; $(GO) run ./cmd/tools
	cd integration; umask 022; SHIM_TEST_PACKAGES=all SHIM_BINARY=$(BINARY) $(GO) test -count=1 -v -timeout 60m -run '$(RUN)' ./packages

# dockerd, BuildKit, crictl and nerdctl are built for these alone, which takes ten minutes and more; docker and its init are Debian's.
# With DOCKER=debian dockerd is Debian's, too. In a virtual machine all takes an hour or two.
DOCKER    ?= moby
LOG_v2       := cgroup2
LOG_systemd  := systemd
CLIENTDEPS = integration/cri/deps.sh; hack/packages.sh $$(command -v patchelf >/dev/null || echo patchelf) \
	$$(command -v ps >/dev/null || echo procps) \
	$$([ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || echo debian-archive-keyring); cd integration; $(GO) run ./cmd/tools -clients
CLIENTS    = cd integration; umask 022; SHIM_BINARY=$(BINARY) $(GO) test -count=1
.PHONY: test-clients smoke-clients
test-clients: deps build ## Docker, BuildKit, crictl, ctr, nerdctl, with this shim and with the runc shim (root); RUN= chooses; WRITE=1: tables of docs/compatibility.md; ON=v2 or systemd
	@$(CLIENTDEPS) all
ifdef ON
	SHIM_TEST_CLIENTS=$(DOCKER) $(MAKE) --no-print-directory test-$(ON) PKGS=./integration/clients WRITE= LIMIT=3h CPUS=$(or $(CPUS),2)
	$(if $(WRITE),cd integration; $(GO) test -count=1 ./clients -from $(CURDIR)/bin/vm/$(LOG_$(ON))/log/clients.json)
else
	SHIM_TEST_CLIENTS=$(DOCKER); export SHIM_TEST_CLIENTS; $(CLIENTS) -v -timeout 90m -run '$(RUN)' ./clients $(if $(WRITE),-update)
endif

# What differs most between shims: life, streams, a terminal, a signal, limits, what outlives dockerd and a shim. Cases of nerdctl
# have the names of those of Docker.
SMOKE_CLIENTS := of_all|of_the_namespace|run|-i|logs_of_.*|attach|run_-it,_resize|exec,_its_exit_codes|exec_-i|stop_with_grace|events,_in_order|OOM|update|named_and_anonymous_volumes|live-restore:_the_container.*|a_killed_shim:.*
smoke-clients: deps build ## a dozen cases of Docker, whose daemon is Debian's, and some of nerdctl, which is built once (root)
	@$(CLIENTDEPS) debian
	SHIM_TEST_CLIENTS=debian; export SHIM_TEST_CLIENTS; $(CLIENTS) -timeout 20m \
		-run 'Test(Docker_(Run|Exec|Stop|Limits|Files|Terminal|Restore|Settings|MountsBelowReadonly)|Nerdctl)/^($(SMOKE_CLIENTS))$$' ./clients

# Its programs are built for these alone, which takes a quarter of an hour; they stay in the cache. In a virtual machine, which
# is slow, only what cgroups decide is tested, unless RUN says otherwise.
KUBERNETESV2 := CPU|Resources
.PHONY: test-kubernetes
test-kubernetes: deps build ## a kubelet and its control plane, with this shim and with the runc shim, compared (root); RUN= chooses; WRITE=1: the table; ON=v2; SHARED=1
	@integration/cri/deps.sh
	cd integration; $(GO) run ./cmd/tools -kubernetes
ifdef ON
	SHIM_TEST_KUBERNETES=1 $(MAKE) --no-print-directory test-$(ON) PKGS=./integration/kubernetes RUN='$(or $(RUN),$(KUBERNETESV2))' WRITE= LIMIT=2h
	$(if $(WRITE),$(if $(RUN),,cd integration; $(GO) test -count=1 ./kubernetes -from $(CURDIR)/bin/vm/$(LOG_$(ON))/log/kubernetes.md))
else
	cd integration; umask 022; SHIM_TEST_KUBERNETES=1 SHIM_BINARY=$(BINARY) \
		$(CONFIGURED) $(GO) test -count=1 -v -timeout 120m -parallel 4 -run '$(RUN)' ./kubernetes $(if $(WRITE),-update)
endif

# Each system call of an operation fails once, with each error: hours. Operations, calls and errors as in
# integration/fakecontainerd, with commas between them;
# JOBS kinds of calls fail at the same time.
OPS    ?= all
CALLS  ?= all
ERRORS ?= all
JOBS   ?= 4
.PHONY: sweep
sweep: deps build ## make system calls of the shim fail, one after the other (root); OPS=, CALLS= and ERRORS= choose; SHARED=1
	cd integration; umask 022; SHIM_BINARY=$(BINARY) SHIM_SWEEP_OPS=$(OPS) SHIM_SWEEP_CALLS=$(CALLS) SHIM_SWEEP_ERRORS=$(ERRORS) \
		$(CONFIGURED) $(GO) test -count=1 -timeout 24h -parallel $(JOBS) -run TestSweep ./fakecontainerd

# Compiles tests and runs them on cgroup v2, in a virtual machine unless this machine is like that. LIMIT is how long each
# package may take, 30m if it is empty. CPUS is how many the guest has: 4 by default, which tests of CPU sets need, and
# which is slower than 2 on a host with 2.
VMTEST    = cd integration; $(GO) build -o $(CURDIR)/bin/vm/vmtest ./cmd/vmtest; umask 022; SHIM_BINARY=$(BINARY) \
	SANDBOXCTL_BINARY=$(wildcard $(CURDIR)/bin/$(TOOL)) $(CURDIR)/bin/vm/vmtest $(if $(LIMIT),-timeout $(LIMIT)) $(if $(CPUS),-cpus $(CPUS))

# A whole run also boots a kernel that lacks a controller, for the test that needs one.
NOMEMORY  = integration/vm/deps.sh; $(VMTEST) -o $(CURDIR)/bin/vm/nomemory -append cgroup_disable=memory -require nomemory \
	./integration/containerd=TestCgroup2_WithoutAController

test-v2: deps build ## tests on cgroup v2, in a virtual machine if need be (root); PKGS= and RUN= choose
	@integration/vm/deps.sh cgroup2
	@integration/cri/deps.sh
	$(VMTEST) -o $(CURDIR)/bin/vm/cgroup2 -run '$(RUN)' $(PACKAGES)
	$(if $(filter file,$(origin PKGS)),$(if $(RUN),,$(if $(filter amd64,$(HOSTARCH)),$(NOMEMORY),@echo "NOT TESTED: a kernel without a controller, which is for amd64")))

# What differs between versions of systemd, and between its cgroup hierarchies. The tests and the shim are static: the C
# libraries of the other suites differ.
SYSTEMD      ?=
CGROUP       ?= v2
SUITE         = $(or $(SUITE_$(or $(SYSTEMD),252)),$(error SYSTEMD=247, 252 or 257))
SUITE_247    := bullseye
SUITE_252    := bookworm
SUITE_257    := trixie
SYSTEMDTESTS := ./pkg/ociruntime/systemd './pkg/ociruntime=Systemd|Update|EveryField' \
	'./integration/containerd=TestSystemd|TestCPUSet_Holds|$(SMOKE_L3)' './integration/cri=TestCgroupParent_PodInASlice'
test-systemd: deps build ## the same with systemd as pid 1; SYSTEMD=247, 252 or 257, CGROUP=v1: a part of them where that is
ifeq ($(SYSTEMD)$(CGROUP),v2)
	@integration/vm/deps.sh systemd
	@integration/cri/deps.sh
	$(VMTEST) -systemd -o $(CURDIR)/bin/vm/systemd -run '$(RUN)' $(PACKAGES) $(if $(filter file,$(origin PKGS)),./integration/deploy=Systemd)
else
	root=$$(integration/vm/root.sh amd64 $(SUITE)); cd integration; $(GO) build -o $(CURDIR)/bin/vm/vmtest ./cmd/vmtest; umask 022; \
		SHIM_BINARY=$(BINARY) GO=$(GO) GOARCH=amd64 ../hack/musl.sh $(CURDIR)/bin/vm/vmtest -root "$$root" -systemd $(if $(filter v1,$(CGROUP)),-v1) \
		-o $(CURDIR)/bin/vm/systemd-$(SUITE)-$(CGROUP) -run '$(RUN)' $(if $(filter file,$(origin PKGS)),$(SYSTEMDTESTS),$(PACKAGES))
endif

# What differs where SELinux enforces a policy: that of integration/vm/guest.
SELINUX   = $(VMTEST) -o $(CURDIR)/bin/vm/selinux -append 'security=selinux enforcing=1'
.PHONY: test-selinux
test-selinux: deps build ## tests under SELinux, in a virtual machine (root); PKGS= and RUN= choose
	@integration/vm/deps.sh
	@integration/cri/deps.sh
	$(SELINUX) $(if $(filter file,$(origin PKGS)),'./pkg/ociruntime=SELinux|TheLabel|TestExec' \
		'./integration/containerd=TestRun|TestExec|TestTerminal' './integration/cri=SELinux|TestExec|TestPodFiles',-run '$(RUN)' $(PACKAGES))

# CI's time ends before that of a package that hangs would.
smoke-vm smoke-arm64: LIMIT ?= 10m

smoke-vm: deps build ## the virtual machine itself, and a few tests in it on cgroup v2, without and with systemd, and under SELinux (root); GUEST= one
	@integration/vm/deps.sh
	@integration/cri/deps.sh
	$(if $(GUEST),,cd integration; SHIM_TEST_REQUIRE=vm $(GO) test -count=1 ./vm)
	$(foreach one,$(or $(GUEST),v2 systemd selinux),$(SMOKE_$(one))$(newline))

define newline


endef
SMOKE_v2      = $(VMTEST) -o $(CURDIR)/bin/vm/cgroup2 $(subst TestExec,TestExec_(JoinsInit|WithACgroup),$(SMOKE)) ./pkg/cpuset \
	'./integration/containerd=$(SMOKE_L3)|TestCPUSet_Holds|TestCPUSet_FollowsItsSource|TestCgroup2' \
	'./integration/cri=TestPod_Runs|TestCheckpoint|AppArmor|TestExec_HasATerminal'
SMOKE_systemd = $(VMTEST) -systemd -o $(CURDIR)/bin/vm/systemd $(SMOKE) \
	'./integration/containerd=$(SMOKE_L3)|TestSystemd_(Container|Limits|CPUSet|KilledShim)' './integration/cri=TestCgroupParent_PodInASlice|AppArmor'
SMOKE_selinux = $(SELINUX) './pkg/ociruntime=BySELinux' './integration/cri=SELinux'

# What differs between kernels: the smoke set, execs and namespaces made by a program without Go, CPU sets, the life of
# containers, pods without a pause container, users of pods. The example of pkg/launcher needs Linux 5.12.
KERNEL      ?=
KERNELTESTS := ./pkg/launcher/native $(SMOKE) './pkg/launcher$(if $(filter 5.10,$(KERNEL)),=Test|Fuzz)' ./pkg/launcher/seccomp ./pkg/pod ./pkg/cpuset \
	'./integration/containerd=$(SMOKE_L3)|TestCPUSet_(Holds|FollowsItsSource|OfThePod)|TestCgroup2|TestRun|TestPause|TestKill|TestCreated|TestSandbox' \
	'./integration/cri=TestPod_(Runs|Init)|TestUserNamespace|TestNamespace_(Containers|Shared)|TestShim_KilledEnds|AppArmor|TestExec_HasATerminal'
test-kernel: deps build ## a part of the tests on a kernel of Debian's: KERNEL=5.10, 6.1, 6.12 or 7
	@integration/vm/deps.sh
	@integration/cri/deps.sh
	$(VMTEST) -kernel '$(or $(KERNEL),$(error KERNEL=5.10, 6.1, 6.12 or 7))' \
		-o $(CURDIR)/bin/vm/kernel-$(KERNEL) -run '$(RUN)' $(if $(filter file,$(origin PKGS)),$(KERNELTESTS),$(PACKAGES))

# Compiled for arm64, linked with musl, and run in a guest with a root of its own: $(call ARMTEST,flags and packages).
ARMTEST  = root=$$(integration/vm/root.sh arm64); cd integration; $(GO) build -o $(CURDIR)/bin/vm/vmtest ./cmd/vmtest; umask 022; \
	SHIM_BINARY=$(CURDIR)/bin/arm64/$(NAME) GO=$(GO) GOARCH=arm64 ../hack/musl.sh $(CURDIR)/bin/vm/vmtest -root "$$root" \
	-o $(CURDIR)/bin/vm/arm64 $(if $(LIMIT),-timeout $(LIMIT)) $(1)
# Life, execs, CPU sets, pods with and without a pause container.
ARMTESTS := ./pkg/... \
	'./integration/containerd=TestRun|TestCreate|TestDelete|TestPause|TestKill|TestState|TestInfo|TestExec|TestTerminal|TestSpec|TestSandbox|TestCPUSet_(Holds|Follows|OfThePod)|$(SMOKE_L3)' \
	'./integration/cri=TestPod_(Runs|Init)|TestUserNamespace|TestNamespace|TestShim_KilledEnds|AppArmor|TestExec'

test-arm64: ## tests in an arm64 guest (root); PKGS=, RUN= and KERNEL= choose
	@ARCH=arm64 hack/deps.sh
	@$(MAKE) --no-print-directory build ARCH=arm64 BIN=bin/arm64
	$(call ARMTEST,-kernel '$(KERNEL)' -run '$(RUN)' $(if $(filter file,$(origin PKGS)),$(ARMTESTS),$(PACKAGES)))

smoke-arm64: ## a few of them, in at most four minutes (root)
	@ARCH=arm64 hack/deps.sh
	@$(MAKE) --no-print-directory build ARCH=arm64 BIN=bin/arm64
	$(call ARMTEST,'./pkg/launcher/native=Test(Execute|Program_(Cannot|Without))' ./pkg/launcher ./pkg/launcher/seccomp \
		'./pkg/ociruntime=TestExec_WithACgroup|TestLauncher_LooksForPrograms' './integration/containerd=$(SMOKE_L3)' './integration/cri=TestPod_Runs')

test-node: deps build ## containers under settings that nodes have, in a virtual machine of its own (root); KERNEL= as above
	@integration/vm/deps.sh
	$(VMTEST) -kernel '$(or $(KERNEL),6.12)' -require node -o $(CURDIR)/bin/vm/node './integration/containerd=TestNode'

demo: deps build ## containers through a private containerd, step by step (root)
	RUNTIME=$(RUNTIME) SHIM_BINARY=$(BINARY) SANDBOXCTL=$(CURDIR)/bin/sandboxctl hack/demo.sh

# What containerd and its shims write lies in memory, as /run does where systemd is: the disk is the same for all, and not what is measured.
# With UNIFIED=1, on a machine with cgroup v2 beside v1, v2 takes the place of v1: v2's code on a processor that is not emulated.
# What wants controllers that v1 has is left out, and crun, which raises a limit that root may not raise everywhere.
UNIFIEDFLAGS := -crun=false -rows idle,run,pod,exec,podexec,stats,start,crowd,storm
bench: deps build ## this shim beside the runc shim, interleaved (root); WRITE=1: twice, into docs/performance.md; UNIFIED=1: on cgroup v2 alone; AGAINST=: beside an earlier build instead
	@integration/cri/deps.sh
	cd integration; $(GO) build -o $(CURDIR)/bin/bench ./bench
	cd integration; dir=$$(mktemp -d /tmp/b.XXXXXX); trap 'rmdir "$$dir"' EXIT; \
		SHIM_TOOLS=$$($(GO) run ./cmd/tools) SHIM_BINARY=$(BINARY) TMPDIR=$$dir \
		unshare -m sh -c 'mkdir -p /run/containerd && mount -t tmpfs -o mode=711 tmpfs /run/containerd && \
			mount -t tmpfs -o mode=711 tmpfs "$$TMPDIR" && $(if $(UNIFIED),mount --rbind /sys/fs/cgroup/unified /sys/fs/cgroup &&) exec "$$@"' sh \
		$(CURDIR)/bin/bench -json $(CURDIR)/bin/bench.json $(if $(WRITE),-runs 2 -write ../docs/performance.md $(if $(UNIFIED),-section unified)) \
		$(if $(AGAINST),-against '$(abspath $(AGAINST))') $(if $(UNIFIED),$(UNIFIEDFLAGS)) $(BENCHFLAGS)

# Emulated, a process takes many times as long to start: fewer of everything. The guest may write to VMBENCH. It copies all
# programs to a tmpfs first: it reads the host's files anew at each start, which would be measured.
VMBENCH  := $(CURDIR)/bin/vm/bench
.PHONY: vmbench
vmbench: deps build
	@integration/vm/deps.sh
	@integration/cri/deps.sh
	rm -rf $(VMBENCH); mkdir -p $(VMBENCH)/bin
	cd integration; cp $(BINARY) "$$($(GO) run ./cmd/tools)"/* $(VMBENCH)/bin
	! command -v crun >/dev/null || cp "$$(command -v crun)" $(VMBENCH)/bin
	cd integration; $(GO) build -o $(VMBENCH)/bin/bench ./bench

# $(call GUESTBENCH,section of the page,kernel parameters,flags)
define GUESTBENCH
	cd integration; $(GO) run ./cmd/vmrun -timeout 1h -cpus $(or $(CPUS),2) -append '$(2)' -rw $(VMBENCH) -tmpfs /mnt -env SHIM_TEST_SLOWNESS=5 \
		-env SHIM_TOOLS=/mnt -env SHIM_BINARY=/mnt/$(NAME) -env PATH=/mnt:$$PATH \
		-- sh -c 'cp "$$0"/bin/* /mnt && exec bench -json "$$0/$(1).json" "$$@"' $(VMBENCH) $(3) $(BENCHFLAGS)
	$(if $(WRITE),cd integration; $(GO) run ./bench -from $(VMBENCH)/$(1).json -section $(1) -write ../docs/performance.md)
endef

bench-v2: vmbench ## the same in short on cgroup v2, in a virtual machine (root); WRITE=1: into docs/performance.md
	$(call GUESTBENCH,v2,apparmor=0,-n 10 -containers 10 -probes 2 -storm 30s)

.PHONY: bench-confined
bench-confined: vmbench ## execs under AppArmor and under SELinux beside others, in virtual machines (root); WRITE=1: likewise
	$(call GUESTBENCH,apparmor,,-rows confined -crun=false -runs 2)
	$(call GUESTBENCH,selinux,security=selinux enforcing=1,-rows confined -crun=false -runs 2)

conformance: deps build ## containerd's own client tests, this shim beside the runc shim (root); RUNTIMES= and REGEX= choose; SHARED=1
	@integration/conformance/deps.sh
	cd integration; SHIM_BINARY=$(BINARY) $(CONFIGURED) $(GO) run ./conformance -runtimes '$(RUNTIMES)' -run '$(REGEX)' -logs $(CURDIR)/bin/conformance

# CAMPAIGNFLAGS are those of integration/cmd/campaign. A run that WRITE=1 keeps is a line of
# integration/campaign/results/totals.jsonl.
CAMPAIGNFLAGS ?=
RESULTS       := $(CURDIR)/integration/campaign/results
TOTALSFILE    := $(RESULTS)/totals.jsonl
.PHONY: campaign
CAMPAIGN       = $(CURDIR)/bin/campaign/campaign -seed $(SEED) -runtime $(RUNTIME) -failures $(CURDIR)/bin/campaign \
	$(if $(SHORT),-length 5m) $(if $(WRITE),-results $(TOTALSFILE)) $(CAMPAIGNFLAGS)
CAMPAIGNGUEST  = $(GO) run ./cmd/vmrun -timeout 12h -cpus $(or $(CPUS),2) $(if $(filter systemd,$(ON)),-systemd) -append apparmor=0 -tmpfs /mnt \
	-rw $(CURDIR)/bin/campaign -rw $(RESULTS) \
	-env SHIM_TEST_SLOWNESS=5 -env SHIM_TOOLS=/mnt -env SHIM_BINARY=/mnt/$(NAME) -env PATH=/mnt:$$PATH \
	-- sh -c 'cp "$$0"/* $(BINARY) /mnt && exec "$$@"' "$$($(GO) run ./cmd/tools)"
CAMPAIGNHERE   = $(CONFIGURED) $(if $(UNIFIED),unshare -m sh -c 'mount --rbind /sys/fs/cgroup/unified /sys/fs/cgroup && exec "$$@"' sh)
campaign: deps build ## containers, execs and faults at random, by SEED, every answer and event checked (root); SHORT=1: five minutes; WRITE=1: a line of JSON into integration/campaign/results; ON=v2 or systemd; UNIFIED=1: here, on cgroup v2 alone
	@integration/cri/deps.sh
	$(if $(ON),@integration/vm/deps.sh)
	cd integration; $(GO) build -o $(CURDIR)/bin/campaign/campaign ./cmd/campaign
	cd integration; umask 022; $(if $(ON),$(CAMPAIGNGUEST),SHIM_BINARY=$(BINARY) $(CAMPAIGNHERE)) $(CAMPAIGN)

# With WRITE=1 a run is added to those whose totals the tree keeps.
fuzz: ## all fuzz targets, for FUZZTIME (5m) together, and what each did; RUN= chooses; TOTALS= is a file that adds up runs; WRITE=1: into docs/reliability.md
	hack/fuzz.sh $(FUZZTIME) "$(TAGS)" '$(or $(RUN),.)' $(if $(WRITE),hack/fuzz.totals docs/reliability.md,'$(TOTALS)')

cover: ## coverage of the unit tests: total on stdout, cover.html
	$(GO) test -tags "$(TAGS)" -coverpkg=./... -coverprofile=cover.out ./...
	$(GO) tool cover -html=cover.out -o cover.html
	$(GO) tool cover -func=cover.out | tail -1

fmt: ## format (gofumpt, goimports)
	$(GOLANGCI) fmt
	cd integration && $(GOLANGCI) fmt --config ../.golangci.yml
	cd hack/release && $(GOLANGCI) fmt --config ../../.golangci.yml
	cd cmd/$(TOOL) && $(GOLANGCI) fmt --config ../../.golangci.yml

lint: ## golangci-lint: .golangci.yml on everything, .golangci-new.yml on changed lines; locks that guard fields
	$(CHECKLOCKS) -test=false ./...
	$(GOLANGCI) run
	cd integration && $(GOLANGCI) run --config ../.golangci.yml
	cd hack/release && $(GOLANGCI) run --config ../../.golangci.yml
	cd cmd/$(TOOL) && $(CHECKLOCKS) -test=false ./... && $(GOLANGCI) run --config ../../.golangci.yml
	$(if $(LINT_BASE),git diff --quiet $(LINT_BASE) || $(GOLANGCI) run --config .golangci-new.yml --new-from-rev=$(LINT_BASE),@echo "no commit to compare with: .golangci-new.yml skipped")

vuln: ## known vulnerabilities in what is called (asks vuln.go.dev; says so if it cannot)
	hack/vuln.sh $(GOVULNCHECK) -tags "$(TAGS)" ./...
	cd cmd/$(TOOL) && ../../hack/vuln.sh $(GOVULNCHECK) ./...

tidy: ## fail if go.mod or go.sum is not tidy, in all modules
	$(GO) mod tidy -diff
	cd integration && $(GO) mod tidy -diff
	cd hack/release && $(GO) mod tidy -diff
	cd cmd/$(TOOL) && $(GO) mod tidy -diff

check: tidy lint test ## what a change must pass: tidy, lint, test

clean: ## remove what was built here (the tool cache stays)
	rm -rf bin cover.out cover.html
