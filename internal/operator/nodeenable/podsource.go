package nodeenable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"time"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/operator/doctor"
)

const daemonUnit = "pullgated.service"

// withoutSource is a sentence with the reason, and the configuration file.
const withoutSource = "pullgated has no pod source, because %s: a pod with imagePullPolicy Never starts only if it " +
	"proved the image before, and on kubelets before 1.33 each new pod asks the registry. Set podSource.kubeconfig in %s."

const header = "apiVersion: " + config.APIVersion + "\nkind: " + config.Kind + "\n"

// podSource plans to give pullgated the kubelet's kubeconfig, if it has none. If it cannot, without is a sentence that
// says what is lost and why. Disable does not revert it: it is a setting of pullgated.
func (s Enabler) podSource(ctx context.Context, l inspection) (steps []Step, without string) {
	file, kubeconfig := s.Daemon.Path, l.node.Dials().Kubeconfig
	if s.Daemon.PodSource.Kubeconfig != "" || file == "" {
		return nil, ""
	}
	because := func(format string, args ...any) ([]Step, string) {
		return nil, fmt.Sprintf(withoutSource, fmt.Sprintf(format, args...), file)
	}
	if s.Daemon.Unedited != "" {
		return because("%s", s.Daemon.Unedited)
	}
	now, err := readIfThere(s.Host, file)
	if err != nil {
		return because("%s cannot be read", file)
	}
	line := "podSource: {kubeconfig: " + kubeconfig + "}\n"
	before := now
	if cut, ok := bytes.CutSuffix(now, []byte("\n"+line)); ok { // an enable that was killed may have added it
		before = now[:len(cut)+1]
	}
	content := before
	if len(before) == 0 {
		before, content = now, []byte(header)
	}
	is, err := config.Parse(content)
	want := is
	want.PodSource.Kubeconfig = kubeconfig
	if content[len(content)-1] != '\n' {
		content = append(bytes.Clone(content), '\n')
	}
	content = append(bytes.Clone(content), line...)
	got, parseErr := config.Parse(content)
	run := Step{
		Action: Run, Text: "run systemctl restart " + daemonUnit, Command: []string{"systemctl", "restart", daemonUnit},
	}
	source := config.PodSource{Kubeconfig: kubeconfig}
	byHand := err == nil && is.PodSource.Kubeconfig != "" // it was not restarted since
	if byHand {
		source = is.PodSource
		run.Text += ", which puts podSource.kubeconfig into force: " + source.Kubeconfig
	}
	unit, _ := program.Show(ctx, s.Host.Run, daemonUnit, "ActiveState")
	switch {
	case err == nil && !s.inForce(is): // the restart would put other changes into force, unseen
		return because("%s has changes that are not in force (restart pullgated, then try again)", file)
	case unit["ActiveState"] != "active":
		return because("%s does not run it", daemonUnit)
	case byHand:
	case kubeconfig == "" || !exists(s.Host, kubeconfig):
		return because("the kubelet's kubeconfig was not found")
	case err != nil || parseErr != nil || !reflect.DeepEqual(got, want):
		return because("no line can be added to %s, or it sets podSource to none", file)
	}
	sees := s.Host.Sees(ctx, daemonUnit, source.Kubeconfig)
	source.Kubeconfig = s.Host.Path(source.Kubeconfig)
	if err := errors.Join(sees, doctor.PodSource(source)); err != nil {
		return because("%s", safetext.OneLine(err))
	}
	if byHand {
		return []Step{run}, ""
	}
	if err := canWrite(s.Host.Path(file)); err != nil {
		return because("%s cannot be written: %v", file, err)
	}
	return []Step{{
		Action: Write, Text: "write " + file, Path: file, Diff: diff(before, content), content: content, before: before,
		mode: 0o644,
	}, run}, ""
}

// inForce reports whether pullgated runs with a configuration, except for its pod source.
func (s Enabler) inForce(c config.Config) bool {
	text := func(c config.Config) string {
		c.PodSource = config.PodSource{}
		content, _ := c.YAML() // as pullgated does
		return string(content)
	}
	return text(c) == text(s.Daemon.Config)
}

func canWrite(path string) error {
	const write = 2
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	dir := filepath.Dir(path)
	for _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist); _, err = os.Stat(dir) { // it will be made
		dir = filepath.Dir(dir)
	}
	return present(syscall.Access(dir, write))
}

// unsetPodSource reverts the first began steps of a plan, as far as podSource made them.
func (s Enabler) unsetPodSource(ctx context.Context, p Plan, began int) error {
	var back []Step
	for _, step := range p.Steps[:min(began, p.own)] {
		if step.Action != Write {
			back = append(back, step)
			continue
		}
		now, err := readIfThere(s.Host, step.Path)
		switch {
		case err != nil:
			return err
		case bytes.Equal(now, step.before):
		case !bytes.Equal(now, step.content):
			return fmt.Errorf("%s was changed meanwhile, and is left as it is", step.Path)
		case step.before == nil:
			back = append(back, Step{Action: Remove, Text: "remove " + step.Path, Path: step.Path})
		default:
			back = append(back, Step{
				Action: Write, Text: "write " + step.Path + " as it was", Path: step.Path, content: step.before,
			})
		}
	}
	_, err := s.do(ctx, Plan{Steps: back})
	return err
}

// syncWait is how long a restarted pullgated may take to sync its pod source before that is reported. The API server
// may be down: then the kubelet, which needs no pod source, is enabled nevertheless.
const syncWait = 10 * time.Second

// awaitDaemon waits until the restarted pullgated is ready.
func (s Enabler) awaitDaemon(ctx context.Context) error {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for began := time.Now(); ; {
		body, err := s.readiness(ctx)
		switch waited := time.Since(began); {
		case err == nil && !strings.Contains(body, "pod source: not synced"):
			return nil
		case err == nil && waited >= syncWait:
			s.progress("pullgated is not synced with the API server yet; pullgatectl doctor shows it, journalctl -u pullgated " +
				"has the reason")
			return nil
		case err != nil && waited >= s.Wait:
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
