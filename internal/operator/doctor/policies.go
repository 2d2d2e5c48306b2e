package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/mechanics/sockets"
	"github.com/pullgate/pullgate/internal/policies/imageaccess"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

const (
	policydProgram = "pullgate-policyd"
	policydConfig  = "/etc/pullgate/policyd.yaml"
	policydSocket  = "pullgate-policyd.socket"
	policydService = "pullgate-policyd.service"
)

func without(reviews, signatures, hooks bool) string {
	effect := ""
	if reviews {
		effect = "; no image is reviewed, and containers start or not by defaultAllow"
	}
	if signatures {
		effect += "; no signature is verified, and images that were not verified before wait"
	}
	if hooks {
		effect += "; no hook is asked, and pods start or not by failurePolicy"
	}
	return strings.TrimPrefix(effect, "; ")
}

func (n Node) policies(ctx context.Context) []Finding {
	a := n.Config.Admission
	if a.Policies == "" {
		return nil
	}
	set, err := policyfiles.Read(n.policyPaths())
	if err != nil {
		return failed(err, "correct what it names, then run pullgated --check-config",
			"the policy files in %s are invalid: %v", a.Policies, err)
	}
	backends := policyfiles.BackendsOf(set)
	signatures, _ := policyfiles.NeedSignatures(policyfiles.Requirements(set))
	hooks := policyfiles.HooksOf(set)
	without := without(len(backends) > 0, signatures, hooks.AtNode())
	access := n.imageAccess(policyfiles.AccessOf(set))
	if without == "" {
		return append(ok("the policy files in %s are valid, and none of them needs %s", a.Policies, policydProgram),
			access...)
	}
	path := socketPath(a.PolicydSocket)
	all, served := n.own(ctx, ownSocket{
		"admission.policydSocket", path, policydProgram, policydSocket, "systemctl enable --now " + policydSocket,
		": " + without,
	})
	if served {
		all = append(all, n.askPolicyd(ctx, path, set.Hash, without, hooks)...)
	}
	return slices.Concat(all, access, n.policydUnits(ctx, without), n.policydFolder(),
		n.policydFiles(ctx, backends, hooks))
}

func (n Node) imageAccess(set *imageaccess.Set) (all []Finding) {
	if set.Gives() && n.Config.NeverVerifyByKubelet() {
		all = fail("remove kubeletConfig, and set imagePullCredentialsVerificationPolicy in the configuration of pullgated",
			"%s", imageaccess.Unverified)
	}
	if len(set.Files()) > 0 && n.Config.AllowRestores {
		all = append(all, warn("set allowRestores: false, unless pods need to be restored from checkpoints",
			"allowRestores is true: which image a restored container uses may be unknown, so a Fence may not exclude it")...)
	}
	for _, w := range set.Warnings() {
		all = append(all, warn("write the repositories that are meant", "%s", w)...)
	}
	for _, err := range new(imageaccess.Prober).Unusable(set, func(path string) string { return n.Path(path) }) {
		all = append(all, warn("make it a docker configuration with an entry for the images, owned by root, mode 0600",
			"%v", err)...)
	}
	return all
}

func (n Node) policyPaths() policyfiles.Paths {
	rooted := func(path string) string {
		if path == "" {
			return ""
		}
		return n.Path(path)
	}
	a := n.Config.Admission
	return policyfiles.Paths{
		Folder: rooted(a.Policies), NamespaceLabels: rooted(a.NamespaceLabels), TrustedRoot: rooted(a.TrustedRoot),
	}
}

func (n Node) askPolicyd(ctx context.Context, path, hash, without string, hooks policyfiles.Hooks) []Finding {
	client, err := policyclient.New("unix://"+n.Path(path),
		policyclient.Options{Review: 3 * patience, Reconnect: patience})
	if err != nil {
		return unknown("report this as a bug of pullgatectl", "%s: %v", path, err)
	}
	defer func() { _ = client.Close() }() // nothing is in progress
	_, err = client.Review(ctx, policyclient.ReviewRequest{PolicyHash: hash, Namespace: "default"})
	setPolicies := "set policies in " + policydConfig + " to " + n.Config.Admission.Policies
	journal := "systemctl status " + policydService + "; journalctl -u " + policydProgram + " -n 50"
	switch {
	case errors.Is(err, policyclient.ErrOtherPolicies):
		return fail(setPolicies+"; "+policydProgram+" --check-config lists invalid files",
			"%s has other policy files than %s: containers that need a review, and images that were not verified before, wait",
			policydProgram, n.Config.Admission.Policies)
	case err != nil:
		return fail(journal, "%s does not answer at %s: %v: %s", policydProgram, path, err, without)
	}
	all := ok("%s answers at %s, with the policy files of %s", policydProgram, path, n.Config.Admission.Policies)
	for i := range hooks {
		if hooks[i].AtNode() {
			all = append(all, askHook(ctx, client, hash, &hooks[i])...)
		}
	}
	return all
}

// samplePod is what hooks are asked about in a dry run. A denial is an answer too.
const samplePod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"pullgate-doctor","namespace":"default"},` +
	`"spec":{"containers":[{"name":"app","image":"registry.example/app:1"}]}}`

func askHook(ctx context.Context, client *policyclient.Client, hash string, h *policyfiles.Hook) []Finding {
	answers, err := client.Admit(ctx, policyclient.AdmitRequest{
		PolicyHash: hash, Namespace: "default", Name: "pullgate-doctor", Node: "pullgate-doctor", Pod: []byte(samplePod),
		Hooks: []string{h.Name}, DryRun: true,
	})
	if err == nil && len(answers) == 1 && answers[0].Failure != "" {
		err = errors.New(answers[0].Failure)
	}
	if err != nil {
		effect := "pods for which it is asked are denied"
		if h.FailOpen {
			effect = "pods are admitted without it"
		}
		return fail("start the hook, or correct clientConfig in "+h.File, "hook %s gives no valid answer at %s: %v: %s",
			h.Name,
			h.Address(), err, effect)
	}
	return ok("hook %s answers at %s", h.Name, h.Address())
}

func (n Node) policydUnits(ctx context.Context, without string) []Finding {
	unit, loaded := program.Show(ctx, n.Run, policydSocket, "UnitFileState")
	// without the unit, another program starts pullgate-policyd
	if state := unit["UnitFileState"]; loaded && state != "enabled" {
		return warn("systemctl enable "+policydSocket, "%s is %s: after the next boot %s", policydSocket, state, without)
	}
	return nil
}

func (n Node) policydFolder() []Finding {
	c, err := config.LoadPolicyd(n.Path(policydConfig))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return warn("write it, see https://github.com/pullgate/pullgate/blob/main/docs/pullgate-policyd.md#configuration",
			"%s not found", policydConfig)
	case err != nil:
		return failed(err, "correct what it names, then run "+policydProgram+" --check-config", "%s: %v", policydConfig,
			err)
	case filepath.Clean(c.Policies) != filepath.Clean(n.Config.Admission.Policies):
		return fail("set policies in "+policydConfig+" to "+n.Config.Admission.Policies+
			", then systemctl restart "+policydService,
			"%s has the policy folder %q, and pullgated %q", policydConfig, c.Policies, n.Config.Admission.Policies)
	case c.TrustedRoot != n.Config.Admission.TrustedRoot:
		return fail("set both to the same file, then systemctl restart "+policydService,
			"%s has the trustedRoot %q, and pullgated the admission.trustedRoot %q: signatures are not verified",
			policydConfig,
			c.TrustedRoot, n.Config.Admission.TrustedRoot)
	}
	return nil
}

func (n Node) policydFiles(ctx context.Context, backends policyfiles.Backends,
	hooks policyfiles.Hooks,
) (all []Finding) {
	uid, gid, known := n.account(policydProgram)
	if !known {
		return warn("systemd-sysusers", "the user %s does not exist, as which %s runs", policydProgram, policydService)
	}
	var closed []string // folders that are reported already
	visible := n.visible(ctx)
	needs := func(path string, secret bool) {
		if dir, mode := n.closedAbove(path, uid, gid); dir != "" {
			if !slices.Contains(closed, dir) {
				closed = append(closed, dir)
				all = append(all, fail(fmt.Sprintf("chgrp %s %s && chmod g+x %s", policydProgram, dir, dir),
					"%s is not accessible to the user %s: %s has mode %04o", path, policydProgram, dir, mode)...)
			}
			return
		}
		if visible != nil && !slices.ContainsFunc(visible, func(dir string) bool { return within(path, dir) }) {
			all = append(all,
				fail(fmt.Sprintf("move it below /etc/pullgate, or add BindReadOnlyPaths=%s under [Service] with "+
					"systemctl edit %s", filepath.Dir(path), policydService), "%s is not visible to %s", path, policydService)...)
		}
		all = append(all, n.readable(path, uid, gid, secret)...)
	}
	if _, err := os.Stat(n.Path(policydConfig)); err == nil {
		needs(policydConfig, false)
	}
	needs(n.Config.Admission.Policies, false)
	// the folder has its finding, and its files get none for the same reason
	closed = append(closed, n.Config.Admission.Policies)
	for _, suffix := range []string{"yaml", "yml", "json"} { // it needs all policies, or it has other ones than pullgated
		for _, path := range n.glob(filepath.Join(n.Config.Admission.Policies, "*."+suffix)) {
			needs(path, false)
		}
	}
	if r := n.Config.Admission.TrustedRoot; r != "" {
		needs(r, false)
	}
	for _, b := range backends {
		needs(b.Kubeconfig, true)
		n.filesOf(b.Kubeconfig, needs)
	}
	for i := range hooks {
		if dir := hooks[i].Certificate; dir != "" {
			needs(filepath.Join(dir, "tls.crt"), false)
			needs(filepath.Join(dir, "tls.key"), true)
		}
		if path := hooks[i].Socket; path != "" {
			err := sockets.Check(n.Path(path))
			if _, unseen := errors.AsType[*fs.PathError](err); err != nil && !unseen {
				all = append(all, fail("chmod go-w "+filepath.Dir(path)+", or correct clientConfig in "+hooks[i].File,
					"hook %s is not asked: %v", hooks[i].Name, err)...)
			}
		}
	}
	c, _ := config.LoadPolicyd(n.Path(policydConfig)) // policydFolder reports an error
	for _, path := range slices.Sorted(maps.Values(c.Kubeconfigs)) {
		needs(path, true)
		n.filesOf(path, needs)
	}
	if len(all) == 0 {
		all = append(all, ok("%s can read every file that the policies need, and no other user can read the credentials "+
			"for backends", policydProgram)...)
	}
	return all
}

func (n Node) readable(path string, uid, gid int, secret bool) []Finding {
	info, err := os.Stat(n.Path(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fail("create it, or correct the file that names it", "%s not found, and %s needs it", path, policydProgram)
	case err != nil:
		return unknown("run it as root", "%s: %v", path, err)
	}
	a := accessOf(info)
	remediation := fmt.Sprintf("chown root:%s %s && chmod 0640 %s", policydProgram, path, path)
	want := fs.FileMode(0o4)
	if info.IsDir() {
		want, remediation = 0o5, fmt.Sprintf("chown root:root %s && chmod 0755 %s", path, path)
	} else if !secret {
		remediation = fmt.Sprintf("chown root:root %s && chmod 0644 %s", path, path)
	}
	switch {
	case !a.may(uid, gid, want):
		return fail(remediation, "%s has %s: the user %s cannot read it", path, a, policydProgram)
	case secret && (a.mode&0o007 != 0 || a.mode&0o070 != 0 && a.gid != 0 && a.gid != gid || a.uid != 0 && a.uid != uid):
		return warn(remediation, "%s has %s: other users can read credentials of pullgate-policyd", path, a)
	case disk.OthersWrite(info, 0):
		return fail(remediation, "%s has %s: users other than root decide which images are reviewed", path, a)
	}
	return nil
}

func (n Node) closedAbove(path string, uid, gid int) (closed string, mode fs.FileMode) {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(n.Path(dir)); err == nil && !accessOf(info).may(uid, gid, 0o1) {
			closed, mode = dir, info.Mode().Perm()
		}
		if dir == "/" || dir == "." {
			return closed, mode
		}
	}
}

func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

func (n Node) visible(ctx context.Context) (paths []string) {
	unit, loaded := program.Show(ctx, n.Run, policydService, "BindReadOnlyPaths", "BindPaths")
	if !loaded {
		return nil
	}
	paths = []string{} // from here on it is known
	for _, property := range []string{"BindReadOnlyPaths", "BindPaths"} {
		for bind := range strings.FieldsSeq(unit[property]) {
			source, rest, _ := strings.Cut(strings.TrimPrefix(bind, "-"), ":")
			if target, _, _ := strings.Cut(rest, ":"); target == "" || target == source {
				paths = append(paths, source)
			}
		}
	}
	return paths
}

func (n Node) account(name string) (uid, gid int, known bool) {
	for line := range strings.Lines(n.read("/etc/passwd")) {
		fields := strings.Split(line, ":")
		if len(fields) < 4 || fields[0] != name {
			continue
		}
		uid, err := strconv.Atoi(fields[2])
		gid, groupErr := strconv.Atoi(fields[3])
		return uid, gid, errors.Join(err, groupErr) == nil
	}
	return 0, 0, false
}

// filesOf calls needs for the files that a kubeconfig names.
func (n Node) filesOf(kubeconfig string, needs func(path string, secret bool)) {
	c, err := clientcmd.Load([]byte(n.read(kubeconfig)))
	if err != nil {
		return // pullgate-policyd --check-config says why
	}
	add := func(path string, secret bool) {
		if path != "" && !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(kubeconfig), path)
		}
		if path != "" {
			needs(path, secret)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Clusters)) {
		add(c.Clusters[name].CertificateAuthority, false)
	}
	for _, name := range slices.Sorted(maps.Keys(c.AuthInfos)) {
		user := c.AuthInfos[name]
		add(user.ClientCertificate, false)
		add(user.ClientKey, true)
		add(user.TokenFile, true)
	}
}
