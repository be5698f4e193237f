# Everything is done by the scripts that the rules name. "make" alone lists the rules.
.PHONY: help deps build package package-test release run test unit soak lint fmt demo cluster
.PHONY: cluster-failover bench bench-lab show-broken clean

help: ## list the rules
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' Makefile
deps: ## install what building and testing need (Debian 12 or 13, as root or through sudo)
	scripts/deps.sh test
build: ## build bin/nvmf-target
	scripts/deps.sh build
	scripts/build.sh
package: ## build the packages (.deb, .rpm) and the SBOM into bin/package
	scripts/deps.sh package
	scripts/package.sh
package-test: ## install, upgrade and purge the packages in a clean Debian; build them twice
	scripts/deps.sh package
	scripts/package-test.sh all
release: ## build packages, an image and checksums for a tag into bin/release; SNAPSHOT=1 without a tag
	scripts/deps.sh package
	SNAPSHOT="$(SNAPSHOT)" scripts/release.sh
run: build ## build and serve a RAM namespace; ADDRESS=127.0.0.1 PORT=4420 SIZE=64MiB change what
	scripts/run.sh
test: ## run everything but what it leaves to soak, which it lists: about 15 minutes
	scripts/test.sh all
unit: ## run everything except the lab: about 10 minutes
	scripts/test.sh unit
soak: ## run what measures time or takes long, and the lab in full: about 80 minutes
	scripts/test.sh soak
lint: ## run go vet, golangci-lint and shellcheck
	scripts/deps.sh unit
	scripts/lint.sh
fmt: ## format the Go code
	scripts/with-go.sh go tool -modfile=.ci/tools/go.mod golangci-lint fmt
demo: ## boot a Linux host that connects over RDMA and runs fio: 1 to 3 minutes
	scripts/deps.sh demo
	scripts/with-go.sh tests/lab/demo.sh
cluster: ## show two gateways to an image of Ceph, one killed, one drained, while a host writes
	scripts/deps.sh cluster
	scripts/with-go.sh tests/lab/cluster.sh show
# EVENTS=kill,drain, STOP=60, MIXED=1 and TRANSPORT=rxe select; see tests/lab/cluster.sh.
cluster-failover: ## kill, stop, cut off and drain gateways, ROUNDS=50 times; print the stalls
	scripts/deps.sh cluster
	scripts/with-go.sh tests/lab/cluster.sh failover
# ALL=1, RUN=REGEXP, ROUNDS=5 and SECONDS_EACH=1 select the measurements; see docs/benchmarks.
bench: build ## measure over loopback TCP and compare with bare sockets
	scripts/with-go.sh go run ./tests/bench -run "$(RUN)" -out "$(if $(RUN),,docs/benchmarks)"
bench-lab: ## compare with the kernel's target in one boot of the lab; also LINKS=siw, VMS=qemu
	scripts/deps.sh test
	OUT="$(if $(RUN)$(LINKS)$(VMS),,docs/benchmarks)" scripts/with-go.sh tests/lab/bench.sh
show-broken: build ## print what "check" says about every broken configuration of the tests
	scripts/show-broken.sh
clean: ## delete what was built here; the caches stay
	rm -rf bin
