package doctor

import (
	"regexp"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// initiator reports whether this machine is, or may become, an NVMe host as well.
func (m Machine) initiator() bool {
	return m.exists("sys/module/nvme_core") || m.exists("sys/module/nvme_fabrics") ||
		m.exists("etc/nvme")
}

func (m Machine) multipath(Target) []Finding {
	switch m.read("sys/module/nvme_core/parameters/multipath") {
	case "Y":
		return []Finding{ok("host multipath", "nvme_core.multipath=Y")}
	case "N":
		return []Finding{{
			"host multipath", Warning, "nvme_core.multipath=N",
			"As a host this machine returns errors to applications when one path fails, also " +
				"while the target restarts.",
			"the kernel parameter nvme_core.multipath=Y, and a restart of the machine",
		}}
	}
	return nil
}

var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// hostNames checks the files from which nvme-cli takes host NQN and host identifier.
func (m Machine) hostNames(Target) (list []Finding) {
	if !m.initiator() {
		return nil
	}
	for _, f := range []struct {
		name, fix string
		valid     func(string) bool
	}{
		{"hostnqn", "nvme gen-hostnqn > /etc/nvme/hostnqn", func(s string) bool {
			return nvme.ValidateNQN(s) == nil
		}},
		{"hostid", "uuidgen > /etc/nvme/hostid", uuid.MatchString},
	} {
		file := "/etc/nvme/" + f.name
		value := m.read(file)
		if f.valid(value) {
			list = append(list, ok("host name", "%s: %s", file, value))
			continue
		}
		found := file + " is missing, empty or not readable"
		if value != "" {
			found = file + " is not valid: " + value
		}
		list = append(list, Finding{
			"host name", Warning, found,
			"Targets know this machine as a host by both names, and names that change or miss " +
				"keep it from connecting.", f.fix,
		})
	}
	return list
}

// udevRule is the file of packaging/udev.
const udevRule = "70-nvmf-target.rules"

func (m Machine) udev(Target) []Finding {
	if !m.initiator() {
		return nil
	}
	for _, dir := range []string{"etc/udev/rules.d", "usr/lib/udev/rules.d", "lib/udev/rules.d"} {
		if m.exists(dir, udevRule) {
			return []Finding{ok("host udev rule", "/%s/%s", dir, udevRule)}
		}
	}
	return []Finding{{
		"host udev rule", Note, udevRule + " is not installed",
		"As a host this machine waits for ten seconds before it connects again to a target that " +
			"was restarted, gives it up after ten minutes, and does not choose the path with the " +
			"fewest requests.",
		"Install the package nvmf-target-host, or: install -m 644 packaging/udev/" + udevRule +
			" /etc/udev/rules.d/",
	}}
}
