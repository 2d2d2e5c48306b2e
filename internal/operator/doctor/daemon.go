package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/records/offline"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// configuration checks the file that the daemon reads.
func (n Node) configuration(context.Context) []Finding {
	if n.ConfigErr != nil {
		return []Finding{failed(n.ConfigErr, "correct what it names, then run pullgated --check-config",
			"%s could not be loaded; the following checks use the defaults: %v", n.ConfigPath, n.ConfigErr)}
	}
	info, err := os.Stat(n.Path(n.ConfigPath))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []Finding{ok("%s not found: every field has its default", n.ConfigPath)}
	case err != nil:
		return []Finding{unknown("run it as root", "%s: %v", n.ConfigPath, err)}
	}
	if found := writable(info, n.ConfigPath); found != nil {
		return found
	}
	return []Finding{ok("%s is valid, and only root can write it", n.ConfigPath)}
}

func (n Node) daemon(context.Context) []Finding {
	s := n.Status
	if found := n.otherConfiguration(); found != nil {
		return found
	}
	if s == nil && errors.Is(n.StatusErr, fs.ErrPermission) {
		return []Finding{unknown("run it as root", "cannot connect to pullgated: permission denied: %v", n.StatusErr)}
	}
	if s == nil {
		return []Finding{fail("check systemctl status pullgated and journalctl -u pullgated; run this as root",
			"pullgated does not respond: %v", n.StatusErr)}
	}
	all := []Finding{ok("pullgated %s answers", s.GetVersion())}
	add := func(f Finding) { all = append(all, f) }
	if !s.GetEnforcing() {
		if policyOf(s.GetConfiguration()) == string(policy.ModeNeverVerify) {
			add(warn("set imagePullCredentialsVerificationPolicy to another one", "the policy is NeverVerify: every pod may use every image"))
		} else {
			add(warn("remove noPullImageSecretRecheck and restart pullgated, once image_pull_secret_recheck_miss shows what that costs",
				"shadow mode: a missing proof is recorded and counted, and denies nothing"))
		}
	}
	for _, l := range s.GetNotListening() {
		add(warn("free the address, or set "+l.GetField()+" to another one and restart pullgated", "%s is not bound, pullgated tries again: %s", l.GetField(), l.GetError()))
	}
	if e := s.GetReload().GetError(); e != "" {
		add(warn("correct the file, then systemctl reload pullgated", "the configuration was read again and refused, the one before is in force: %s", e))
	}
	if r := s.GetRuntime(); !r.GetUp() {
		add(fail("systemctl status of the runtime; compare runtimeEndpoint with where it listens", "pullgated does not reach the runtime at %s", r.GetEndpoint()))
	}
	if p := s.GetPodSource(); p == nil {
		add(ok("no pod source: a pod with Never runs only if it proved the image before, see https://github.com/pullgate/pullgate/blob/main/docs/credentials.md#the-pod-source"))
	} else if !p.GetSynced() {
		add(warn("check the API server, and the messages about the pod source in journalctl -u pullgated",
			"the pod source is not synced with the API server: new pods are judged by CRI data only"))
	}
	if d := s.GetDecisionLog().GetDropped(); d > 0 {
		add(warn("check free space and permissions at "+s.GetDecisionLog().GetPath(), "%s missing in the decision log", counted(d, "decision")))
	}
	return all
}

// otherConfiguration returns a finding if pullgated runs with another configuration file than the checked one: then the
// findings about its sockets do not apply to it. If the daemon does not respond, its command line shows the file.
func (n Node) otherConfiguration() []Finding {
	if file := n.Status.GetConfigurationPath(); file != "" {
		if file == filepath.Clean(n.ConfigPath) {
			return nil
		}
		return []Finding{fail("pullgatectl doctor --config "+file, "pullgated runs with the configuration %s, and doctor checked %s", file, n.ConfigPath)}
	}
	if n.Status != nil {
		return nil // the status has no path
	}
	for _, p := range n.running("pullgated") {
		file := flagValue(n.commandLine(p.pid), "--config")
		if file == "" {
			file = defaultConfig
		}
		if !filepath.IsAbs(file) {
			cwd, err := os.Readlink(n.Path("/proc", strconv.Itoa(p.pid), "cwd"))
			if err != nil {
				continue
			}
			file = filepath.Join(cwd, file)
		}
		if filepath.Clean(file) != filepath.Clean(n.ConfigPath) {
			return []Finding{fail("pullgatectl doctor --config "+file, "%s runs with the configuration %s, and doctor checked %s", p, file, n.ConfigPath)}
		}
	}
	return nil
}

// defaultConfig is the file that pullgated reads without --config.
const defaultConfig = "/etc/pullgate/config.yaml"

func policyOf(configuration string) string {
	c := struct {
		Policy string `json:"imagePullCredentialsVerificationPolicy"`
	}{config.Default().ImagePullCredentialsVerificationPolicy}
	if yaml.Unmarshal([]byte(configuration), &c) != nil {
		return ""
	}
	return c.Policy
}

// recorded checks the content of the store, through the daemon or, without it, in the file.
func (n Node) recorded(ctx context.Context) []Finding {
	path := filepath.Join(n.Config.StateDir, tracker.StoreFile)
	var all []Finding
	if s := n.Status.GetStore(); s != nil {
		if d := s.GetDistrust(); d != nil {
			all = append(all, warn("list the images with pullgatectl distrust end --dry-run, then end distrust, or let pods prove access again",
				"the store is distrusted since %s, no further image is marked preloaded: %s", d.GetSince().AsTime().Format(time.RFC3339), d.GetReason()))
		}
		if m := s.GetMarks(); m > 0 && policyOf(n.Status.GetConfiguration()) == string(policy.ModeNeverVerifyPreloadedImages) {
			all = append(all, warn("list them with pullgatectl preloaded list; close those that not every pod may use with pullgatectl preloaded forget",
				"%s: every pod may use an image that is marked", counted(m, "preloaded mark")))
		}
		if len(all) == 0 {
			all = append(all, ok("%s, %s, no preloaded mark that counts, not distrusted", counted(s.GetRecords(), "record"), counted(s.GetIntents(), "intent")))
		}
		return all
	}
	ctx, cancel := context.WithTimeout(ctx, 10*patience)
	defer cancel()
	v, err := offline.Check(ctx, n.Path(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []Finding{unknown("start pullgated, which creates it", "%s not found", path)}
	case errors.Is(err, offline.ErrInUse):
		return []Finding{unknown("see the findings about the daemon", "%s is open in a pullgated that does not respond", path)}
	case errors.Is(err, offline.ErrNewerFormat):
		return []Finding{fail("install the version that wrote it, or move it away: every image then needs proof once", "%s: %v", path, err)}
	case err != nil:
		return []Finding{unknown("run it as root", "%s: %v", path, err)}
	case len(v.Problems) > 0:
		return []Finding{fail("check the disk; for a damaged store see https://github.com/pullgate/pullgate/blob/main/docs/store.md#a-lost-or-damaged-store",
			"%s cannot be read in %s, the first: %s: %s", path, counted(len(v.Problems)+v.Omitted, "place"), v.Problems[0].Where, v.Problems[0].What)}
	}
	return []Finding{ok("%s is valid, with %d values", path, v.Values)}
}

// state checks the files of the state directory.
func (n Node) state(context.Context) []Finding {
	dir := n.Config.StateDir
	info, err := os.Lstat(n.Path(dir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []Finding{unknown("start pullgated, which creates it", "%s not found", dir)}
	case err != nil:
		return []Finding{unknown("run it as root", "%s: %v", dir, err)}
	case !info.IsDir():
		return []Finding{fail("set stateDir to a directory", "%s is not a directory", dir)}
	}
	all := private(info, dir, 0o700)
	present := map[string]bool{}
	for _, name := range []string{tracker.StoreFile, tracker.KeyFile} {
		file := filepath.Join(dir, name)
		info, err := os.Lstat(n.Path(file))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			all = append(all, unknown("run it as root", "%s: %v", file, err))
		case !info.Mode().IsRegular():
			all = append(all, fail("move it away", "%s is not a regular file", file))
		default:
			present[name] = true
			all = append(all, private(info, file, 0o600)...)
		}
	}
	if present[tracker.StoreFile] != present[tracker.KeyFile] {
		all = append(all, warn("restore both from one backup, or let pods prove access again",
			"records.db or node.key is missing in %s: neither can be used without the other", dir))
	}
	if aside := n.glob(filepath.Join(dir, "records.db.damaged-*")); len(aside) > 0 {
		all = append(all, warn("look at the disk; pullgatectl store dump shows what can be read of it, then delete it",
			"a damaged store was set aside as %s", strings.Join(aside, ", ")))
	}
	if len(all) == 0 {
		all = append(all, ok("%s and its files are accessible to root only", dir))
	}
	return all
}
