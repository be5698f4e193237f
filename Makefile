# Everything is done by the scripts that the rules name. "make" alone lists the rules.
.PHONY: help deps build run test unit lint fmt demo bench bench-lab show-broken clean

help: ## list the rules
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile
deps: ## install what building and testing need (Debian 12, as root or through sudo)
	scripts/deps.sh test
build: ## build bin/nvmf-target
	scripts/deps.sh build
	scripts/build.sh
run: build ## build, serve a RAM namespace on TCP, and on RDMA where a device exists, and print how to connect
	scripts/run.sh
test: ## run everything, the lab included
	scripts/test.sh all
unit: ## run everything except for the lab
	scripts/test.sh unit
lint: ## run go vet, golangci-lint and shellcheck
	scripts/deps.sh unit
	scripts/lint.sh
fmt: ## format the Go code
	scripts/with-go.sh go tool -modfile=.ci/tools/go.mod golangci-lint fmt
demo: ## boot the lab, connect a Linux host over RDMA, make a file system, run fio: about a minute
	scripts/deps.sh test
	scripts/with-go.sh tests/lab/demo.sh
bench: build ## load over loopback TCP, compared with bare sockets, and what was to be reached; ALL=1, RUN=REGEXP, ROUNDS=5, SECONDS_EACH=1
	scripts/with-go.sh go run ./tests/bench -run "$(RUN)" -out "$(if $(RUN),,docs/benchmarks)"
bench-lab: ## compare with the kernel's target, both in one boot of the lab; the same, and LINKS=siw, VMS=qemu
	scripts/deps.sh test
	OUT="$(if $(RUN)$(LINKS)$(VMS),,docs/benchmarks)" scripts/with-go.sh tests/lab/bench.sh
show-broken: build ## print what "check" says about every broken configuration of the tests
	scripts/show-broken.sh
clean: ## delete what was built here; the caches stay
	rm -rf bin
