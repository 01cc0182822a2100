// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// The weights of the OCI runtime specification (config-linux.md, Block IO), which are those of cgroup v1.
const (
	minWeight = 10
	maxWeight = 1000
)

func checkBlockIO(r *specs.LinuxResources, _ Host) error {
	b := r.BlockIO
	if b == nil {
		return nil
	}
	if err := checkWeights("blockIO", b.Weight, b.LeafWeight); err != nil {
		return err
	}
	for i, d := range b.WeightDevice {
		field := fmt.Sprintf("blockIO.weightDevice[%d]", i)
		if err := checkNumbers(field, d.LinuxBlockIODevice); err != nil {
			return err
		}
		if err := checkWeights(field, d.Weight, d.LeafWeight); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		name    string
		devices []specs.LinuxThrottleDevice
	}{
		{"throttleReadBpsDevice", b.ThrottleReadBpsDevice},
		{"throttleWriteBpsDevice", b.ThrottleWriteBpsDevice},
		{"throttleReadIOPSDevice", b.ThrottleReadIOPSDevice},
		{"throttleWriteIOPSDevice", b.ThrottleWriteIOPSDevice},
	} {
		for i, d := range f.devices {
			if err := checkNumbers(fmt.Sprintf("blockIO.%s[%d]", f.name, i), d.LinuxBlockIODevice); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkWeights(field string, weight, leafWeight *uint16) error {
	allowed := fmt.Sprintf("must be 0 (unset) or from %d to %d", minWeight, maxWeight)
	bad := func(v uint16) bool { return v != 0 && (v < minWeight || v > maxWeight) }
	if v := value(weight); bad(v) {
		return refuse(field+".weight", v, allowed)
	}
	if v := value(leafWeight); bad(v) {
		return refuse(field+".leafWeight", v, allowed)
	}
	return nil
}

func checkNumbers(field string, d specs.LinuxBlockIODevice) error {
	if err := checkNumber(field+".major", d.Major, 0); err != nil {
		return err
	}
	return checkNumber(field+".minor", d.Minor, 0)
}

func checkNumber(field string, n, least int64) error {
	if n < least || n > math.MaxUint32 {
		return refuse(field, n, fmt.Sprintf("must be from %d to %d", least, uint32(math.MaxUint32)))
	}
	return nil
}

func checkDevices(r *specs.LinuxResources, _ Host) error {
	for i, d := range r.Devices {
		field := fmt.Sprintf("devices[%d].", i)
		if !slices.Contains([]string{"", "a", "b", "c"}, d.Type) {
			return refuse(field+"type", d.Type, "must be a, b, c, or empty for a")
		}
		if d.Access == "" || strings.Trim(d.Access, "rwm") != "" {
			return refuse(field+"access", d.Access, "must be some of r, w and m")
		}
		const wildcard = -1
		if d.Major != nil {
			if err := checkNumber(field+"major", *d.Major, wildcard); err != nil {
				return err
			}
		}
		if d.Minor != nil {
			if err := checkNumber(field+"minor", *d.Minor, wildcard); err != nil {
				return err
			}
		}
	}
	return nil
}

var pageSizeForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("^[1-9][0-9]*[KMG]B$") })

func checkHugePages(r *specs.LinuxResources, h Host) error {
	for i, l := range r.HugepageLimits {
		field := fmt.Sprintf("hugepageLimits[%d].pageSize", i)
		if !pageSizeForm().MatchString(l.Pagesize) {
			return refuse(field, l.Pagesize, "must be a number and KB, MB or GB, such as 2MB")
		}
		if len(h.PageSizes) > 0 && !slices.Contains(h.PageSizes, l.Pagesize) {
			return refuse(field, l.Pagesize, fmt.Sprintf("must be one that this kernel has: %s", strings.Join(h.PageSizes, ", ")))
		}
	}
	return nil
}

func checkRdma(r *specs.LinuxResources, _ Host) error {
	for name := range r.Rdma {
		if !word(name) {
			return refuse(fmt.Sprintf("rdma[%q]", name), "", "must be the name of a device, without blanks")
		}
	}
	return nil
}

func checkNetwork(r *specs.LinuxResources, _ Host) error {
	if r.Network == nil {
		return nil
	}
	for i, p := range r.Network.Priorities {
		if !word(p.Name) {
			return refuse(fmt.Sprintf("network.priorities[%d].name", i), p.Name, "must be the name of an interface, without blanks")
		}
	}
	return nil
}

// word reports whether name can stand in a line of a control file.
func word(name string) bool { return name != "" && !strings.ContainsAny(name, " \t\n\x00") }

func checkUnified(r *specs.LinuxResources, h Host) error {
	for key, text := range r.Unified {
		field := fmt.Sprintf("unified[%q]", key)
		if !h.Unified {
			return refuse(field, text, "needs cgroup v2, and this machine has v1")
		}
		if controller, _, ok := strings.Cut(key, "."); !ok || controller == "" || strings.ContainsAny(key, "/\x00") {
			return refuse(field, text, "the key must be the name of a control file, such as memory.high")
		}
	}
	return nil
}
