package doctor

import (
	"testing"
)

func TestInitiator(t *testing.T) {
	host := files{
		"sys/module/nvme_core/parameters/multipath": "Y",
		"etc/nvme/hostnqn":                          "nqn.2014-08.org.nvmexpress:uuid:1",
		"etc/nvme/hostid":                           "562d2020-2249-4c07-907c-fccf2e12f53e",
		"etc/udev/rules.d/" + udevRule:              "",
	}
	for _, c := range []check{
		{"no host", Machine.multipath, nil, Target{}, nil},
		{"no host names", Machine.hostNames, nil, Target{}, nil},
		{"no host rule", Machine.udev, nil, Target{}, nil},
		{"multipath", Machine.multipath, host, Target{}, []string{"ok: =Y"}},
		{
			"no multipath", Machine.multipath,
			files{"sys/module/nvme_core/parameters/multipath": "N"},
			Target{},
			[]string{"warning: =N | nvme_core.multipath=Y"},
		},
		{"names", Machine.hostNames, host, Target{}, []string{"ok: hostnqn", "ok: hostid"}},
		{
			"a name of another form", Machine.hostNames,
			files{"etc/nvme/hostnqn": "hostnqn", "etc/nvme/hostid": host["etc/nvme/hostid"]},
			Target{},
			[]string{"ok: hostnqn", "ok: hostid"},
		},
		{
			"no names", Machine.hostNames,
			files{"etc/nvme/hostid": "12"},
			Target{},
			[]string{
				"warning: /etc/nvme/hostnqn is missing | gen-hostnqn",
				"warning: is not valid: 12 | uuidgen",
			},
		},
		{"rule", Machine.udev, host, Target{}, []string{"ok: /etc/udev/rules.d/70-nvmf-target"}},
		{
			"no rule", Machine.udev,
			files{"sys/module/nvme_fabrics/x": ""},
			Target{},
			[]string{"note: is not installed | packaging/udev"},
		},
	} {
		c.test(t)
	}
}
