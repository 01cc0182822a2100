// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// All that a bundle can say of mounts, devices, masked paths and sysctls becomes strings of a request; none ends early,
// and none gets lost.
func FuzzInit(f *testing.F) {
	f.Add("/data", "/src", "mode=755,size=64k", uint32(unix.MS_RDONLY|unix.MS_BIND), "/proc/kcore",
		"net.ipv4.ip_forward=1", "/dev/fuse", uint8(0xff))
	f.Add("/proc", "proc", "", uint32(unix.MS_NOSUID), "/sys/firmware\x00/x", "", "/dev/ptmx", uint8(0x01))
	f.Add("tmp/../x", "tmpfs", "a=,=b,,c", uint32(unix.MS_NOATIME|unix.MS_STRICTATIME), "", "a=b=c", "", uint8(0x56))
	f.Add("\x00", "0", "0", uint32(unix.MS_NOSUID), "", "0", "", uint8(0x56))
	f.Fuzz(func(t *testing.T, destination, source, data string, flags uint32, masked, sysctl, device string, what uint8) {
		has := func(bit int) bool { return what>>bit&1 == 1 }
		kinds := []string{"bind", "proc", "sysfs", "mqueue", "tmpfs", "devpts", "cgroup2", "overlay"}
		m := &Mount{
			Type: kinds[what&7], Source: source, Destination: destination, Data: data, Flags: int(flags),
		}
		if m.Type == Bind {
			m.Flags |= unix.MS_BIND
		}
		key, value, _ := strings.Cut(sysctl, "=")
		i := &Container{
			Process: Process{Args: []string{"a"}, Cwd: "/", Env: []string{"PATH=/"}},
			Root:    "/rootfs", ReadonlyRoot: has(3), Mounts: []*Mount{m},
			Namespaces: []Namespace{{Type: unix.CLONE_NEWNS}, {Type: unix.CLONE_NEWPID}},
			Devices:    []*Device{{Path: device, Type: 'c', Major: 1, Minor: 3}},
		}
		if masked != "" {
			i.MaskedPaths, i.ReadonlyPaths = strings.Split(masked, "\x00"), strings.Split(masked, "\x00")[:1]
		}
		if sysctl != "" {
			i.Sysctl = map[string]string{key: value}
		}
		if has(5) {
			i.MountLabel = "label"
		}
		if i.Unsupported() != "" || strings.ContainsRune(key+value+device, 0) {
			return // another runtime makes or refuses it
		}
		if has(6) {
			i.Terminal = &Terminal{}
		}
		var final bool
		request := containerRequest(i, has(7), &final).Encode()
		r := reader{t, request}
		if got := r.word(0); got != uint64(len(r.b)) || got%8 != 0 || r.b[got-1] != 0 {
			t.Fatalf("a size of %d in %d bytes", got, len(r.b))
		}
		addresses := r.addresses()
		texts := map[string]bool{}
		data0 := headerSize + r.word(8)*stepSize + r.word(16)*8
		for at := range addresses {
			if text, _, ok := strings.Cut(string(request[data0+r.word(at):]), "\x00"); ok {
				texts[text] = true
			}
		}
		want := slices.Clone(i.MaskedPaths)
		if destination != "" && !strings.ContainsRune(destination, 0) { // Execute refuses a string with a zero byte
			want = append(want, path.Clean("/"+destination))
		}
		if key != "" {
			want = append(want, key)
		}
		for _, text := range want {
			if text = strings.ReplaceAll(text, ".", "/"); !slices.ContainsFunc(keys(texts), func(s string) bool {
				return strings.Contains(strings.ReplaceAll(s, ".", "/"), text)
			}) {
				t.Errorf("%q is in no step", text)
			}
		}
		for n, s := range r.steps() {
			if s.condition > int64(n) || s.condition < -int64(n) {
				t.Errorf("step %d depends on step %d", n, s.condition)
			}
		}
	})
}

func keys(set map[string]bool) (list []string) {
	for key := range set {
		list = append(list, key)
	}
	return list
}

// The author of a container can make any of these large: none is multiplied with another.
func TestRequest_IsAsLargeAsItsInputs(t *testing.T) {
	const many, long = 2000, 1 << 18
	text := strings.Repeat("x", long)
	list := func(of func(i int) string) (all []string) {
		for i := range many {
			all = append(all, of(i))
		}
		return all
	}
	names := list(func(i int) string { return fmt.Sprintf("/dir/%d", i) })
	mounts := func(kind string) (all []*Mount) {
		for _, name := range names {
			m := &Mount{Type: kind, Source: "/src", Destination: name, Data: "mode=755"}
			if kind == Bind {
				m.Data, m.Flags = "", unix.MS_BIND|unix.MS_RDONLY
			}
			all = append(all, m)
		}
		return all
	}
	for name, change := range map[string]func(*Container){
		"PATH and program": func(i *Container) {
			i.Args, i.Env = []string{text}, []string{"PATH=" + strings.Join(names, ":")}
		},
		"PATH of nothing": func(i *Container) { i.Env = []string{"PATH=" + strings.Repeat(":", long)} },
		"PATH and task directory": func(i *Container) {
			i.Args, i.Env = []string{text}, []string{"PATH=" + strings.Join(names, ":")}
		},
		"arguments and environment": func(i *Container) {
			i.Args, i.Env = append(names, text), list(func(n int) string { return fmt.Sprintf("A%d=%s", n, names[n]) })
		},
		"working directory": func(i *Container) { i.Cwd = strings.Repeat("/x", long/2) },
		"mounts and label":  func(i *Container) { i.Mounts, i.MountLabel = mounts("tmpfs"), text },
		"mounts and root":   func(i *Container) { i.Mounts, i.Root = mounts("bind"), "/"+text },
		"paths and label": func(i *Container) {
			i.MaskedPaths, i.ReadonlyPaths, i.Label = append(names, text), append(names, text), text
		},
		"sysctls": func(i *Container) {
			i.Sysctl = map[string]string{"a": text}
			for _, name := range names {
				i.Sysctl[name] = name
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			i := &Container{
				Process: Process{Args: []string{"a"}, Cwd: "/", Env: []string{"PATH=/"}},
				Root:    "/rootfs", Namespaces: []Namespace{{Type: unix.CLONE_NEWNS}, {Type: unix.CLONE_NEWPID}},
			}
			change(i)
			var final bool
			for what, request := range map[string]func() []byte{
				"init": func() []byte { return containerRequest(i, false, &final).Encode() },
				"exec": func() []byte { return i.request(false).Encode() },
			} {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				size := len(request())
				runtime.ReadMemStats(&after)
				// A mount takes some twenty steps, and a text some copies.
				const mostSize, mostAllocated = many*3<<10 + 4*long, many*12<<10 + 12*long
				if allocated := after.TotalAlloc - before.TotalAlloc; size > mostSize || allocated > mostAllocated {
					t.Errorf("%s: %d bytes and %d allocated, want at most %d and %d", what, size, allocated, mostSize, mostAllocated)
				}
			}
		})
	}
}
