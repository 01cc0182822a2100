// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sandbox.internal/shim/cmd/sandboxctl/clean"
	"sandbox.internal/shim/cmd/sandboxctl/cli"
	"sandbox.internal/shim/cmd/sandboxctl/leftover"
	"sandbox.internal/shim/cmd/sandboxctl/removal"
)

// cleaning is doctor --clean.
type cleaning struct{ wanted, yes bool }

func (c cleaning) run(cmd *cobra.Command, o *cli.Options, config Config) error {
	ctx := cmd.Context()
	stdin, _ := cmd.InOrStdin().(*os.File)
	if !c.yes && (o.JSON() || stdin == nil || !term.IsTerminal(int(stdin.Fd()))) {
		return errors.New("--clean asks before it removes anything: run it on a terminal with -o table, or give --yes")
	}
	e := &Examination{Config: config}
	e.findDaemon(ctx)
	e.readConfig(ctx)
	if err := e.mayClean(); err != nil {
		return fmt.Errorf("nothing is removed: %w", err)
	}
	e.findLeftovers(ctx)
	if e.knownErr != nil {
		return fmt.Errorf("nothing is removed: containerd does not say which containers there are: %w", e.knownErr)
	}
	session := clean.Session{
		Remover: removal.Remover{
			State: e.Root.Resolve(e.State), Address: e.Address, Look: e.lookAgain, Binary: e.runnableShim,
		},
		Options: o, Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr(),
	}
	if !c.yes {
		session.Ask = stdin
	}
	return session.Run(ctx, e.leftovers)
}

// mayClean returns why nothing may be removed on this node.
func (e *Examination) mayClean() error {
	switch {
	case e.Probes.Euid != 0:
		return errors.New("it needs root")
	case e.daemonErr != nil:
		return fmt.Errorf("containerd, which alone knows what is wanted, cannot be asked: %w; when it is started, "+
			"it removes most of what dead shims left itself", e.daemonErr)
	case !sameMounts(e.daemon), !sameRoot(e.daemon), !sameNamespace(e.daemon, "pid"):
		return fmt.Errorf("containerd, pid %d, sees other mounts or processes than this program does: run this where it "+
			"runs, such as by nsenter -t %d -m -p -r", e.daemon.Pid, e.daemon.Pid)
	case e.configErr != nil:
		return fmt.Errorf("containerd's configuration, which says where its state is, is not known: %w", e.configErr)
	case e.Root.Resolve(e.State) != e.Root.Resolve(e.configuredState()):
		return fmt.Errorf("--state %s is not the directory of the containerd that answers on %s: that is %s",
			e.State, e.Address, e.configuredState())
	}
	return nil
}

// lookAgain looks for leftovers again. The containerd must be the same process as before.
func (e *Examination) lookAgain(ctx context.Context) ([]leftover.Leftover, error) {
	now := &Examination{Config: e.Config, config: e.config, configErr: e.configErr}
	now.findDaemon(ctx)
	if now.daemonErr == nil && now.daemon.Pid != e.daemon.Pid {
		return nil, errors.New("containerd was started anew meanwhile: run this again")
	}
	if err := now.mayClean(); err != nil {
		return nil, err
	}
	now.findLeftovers(ctx)
	if now.knownErr != nil {
		return nil, fmt.Errorf("containerd does not say which containers there are: %w", now.knownErr)
	}
	return now.leftovers, nil
}

// runnableShim returns the shim that made a bundle, or the one that containerd would start, if only root can change it.
func (e *Examination) runnableShim(path string) (string, error) {
	if path != "" {
		exe, err := runnable(path)
		if !errors.Is(err, os.ErrNotExist) {
			return exe, err
		}
	}
	path, err := e.lookUp()
	if err != nil {
		return "", err
	}
	return runnable(path)
}
