package webhook

import (
	"crypto/sha256"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/config"
)

// Names of objects. policyd is that of all which have no other one.
const (
	policyd        = "pullgate-policyd"
	policiesName   = "pullgate-policies"
	trustedRoot    = "pullgate-trusted-root"
	tlsSecret      = "pullgate-policyd-tls"
	backendsSecret = "pullgate-backends"
)

// Paths in the container. Policies and kubeconfigs of backends have those of a node, because the same files name them.
const (
	configFolder   = "/etc/pullgate/config"
	configFile     = "policyd.yaml"
	tlsFolder      = "/etc/pullgate/tls"
	policiesFolder = "/etc/pullgate/policies"
	backendsFolder = "/etc/pullgate/backends"
	rootFolder     = "/etc/pullgate/trusted-root"
	rootFile       = "trusted_root.json"
)

const (
	httpsPort   = 9443
	metricsPort = 9472
	replicas    = 2
	// user is the user and the group of the process; it owns nothing.
	user = 65532
	// drain is how long a pod serves after the decision to stop it: until then, kube-apiserver may still send requests to it.
	drain = 5 * time.Second
)

// webhookName is the name of the only webhook. kube-apiserver puts it, and a slash, before the keys of audit annotations. With this name they
// have the keys that its own plugin ImagePolicyWebhook gives them.
const webhookName = "imagepolicywebhook.image-policy.k8s.io"

// diskSuffix is the end of the names of all objects that kube-apiserver reads from its disk.
const diskSuffix = ".static.k8s.io"

func metaOf(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: manifestLabels()}
}

func manifestLabels() map[string]string { return map[string]string{"app.kubernetes.io/name": policyd} }

func (o ManifestOptions) meta(name string) metav1.ObjectMeta {
	m := metaOf(name)
	m.Namespace = o.Namespace
	return m
}

// watchesNamespaces reports whether a policy needs the labels of namespaces, or can need them.
func (o ManifestOptions) watchesNamespaces() bool { return o.Policies == nil || o.Policies.namespaces }

// cluster returns the objects of a pullgate-policyd in the cluster.
func (o ManifestOptions) cluster() ([]any, error) {
	configuration, err := o.configuration()
	if err != nil {
		return nil, err
	}
	namespace := metaOf(o.Namespace)
	namespace.Labels["pod-security.kubernetes.io/enforce"] = "restricted"
	objects := []any{
		&corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: namespace},
		&corev1.ServiceAccount{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: o.meta(policyd),
			AutomountServiceAccountToken: new(false), // the pod says whether it needs a token
		},
	}
	if o.watchesNamespaces() {
		objects = append(objects, o.rbac()...)
	}
	objects = append(objects, o.configMap(policyd, map[string]string{configFile: configuration}))
	if o.Policies != nil {
		objects = append(objects, o.configMap(policiesName, o.Policies.contents))
	}
	if o.TrustedRoot != nil {
		objects = append(objects, o.configMap(trustedRoot, map[string]string{rootFile: string(o.TrustedRoot)}))
	}
	return append(objects, o.deployment(configuration), o.disruptionBudget(), o.service(), o.webhookConfiguration()), nil
}

func (o ManifestOptions) rbac() []any {
	return []any{
		&rbacv1.ClusterRole{
			TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"}, ObjectMeta: metaOf(policyd),
			Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get", "list", "watch"}}},
		},
		&rbacv1.ClusterRoleBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"}, ObjectMeta: metaOf(policyd),
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: policyd},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: policyd, Namespace: o.Namespace}},
		},
	}
}

func (o ManifestOptions) configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: o.meta(name), Data: data}
}

// configuration returns the PolicydConfiguration.
func (o ManifestOptions) configuration() (string, error) {
	type listen struct {
		Listen string `json:"listen"`
	}
	type https struct {
		listen
		CertFile string `json:"certFile"`
		KeyFile  string `json:"keyFile"`
	}
	root := ""
	if o.TrustedRoot != nil {
		root = rootFolder + "/" + rootFile
	}
	text, err := yaml.Marshal(struct {
		APIVersion   string               `json:"apiVersion"`
		Kind         string               `json:"kind"`
		Policies     string               `json:"policies"`
		TrustedRoot  string               `json:"trustedRoot,omitempty"`
		HTTPS        https                `json:"https"`
		Metrics      listen               `json:"metrics"`
		PodTemplates []config.PodTemplate `json:"podTemplates,omitempty"`
	}{
		config.APIVersion, config.PolicydKind, policiesFolder, root,
		https{listen{fmt.Sprintf(":%d", httpsPort)}, tlsFolder + "/" + corev1.TLSCertKey, tlsFolder + "/" + corev1.TLSPrivateKeyKey},
		listen{fmt.Sprintf(":%d", metricsPort)},
		o.Templates,
	})
	return string(text), err
}

func (o ManifestOptions) deployment(configuration string) *appsv1.Deployment {
	pod := metav1.ObjectMeta{Labels: manifestLabels(), Annotations: map[string]string{
		// Fields of the configuration need a restart, which a change of the pod template brings.
		"pullgate.dev/configuration": fmt.Sprintf("%x", sha256.Sum256([]byte(configuration)))[:16],
	}}
	return &appsv1.Deployment{
		TypeMeta: metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment"}, ObjectMeta: o.meta(policyd),
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(replicas)), Selector: &metav1.LabelSelector{MatchLabels: manifestLabels()},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType},
			Template: corev1.PodTemplateSpec{ObjectMeta: pod, Spec: o.podSpec()},
		},
	}
}

func (o ManifestOptions) podSpec() corev1.PodSpec {
	volumes, mounts := o.volumes()
	return corev1.PodSpec{
		ServiceAccountName: policyd, AutomountServiceAccountToken: new(o.watchesNamespaces()), EnableServiceLinks: new(false),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(user)), RunAsGroup: new(int64(user)), FSGroup: new(int64(user)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
			LabelSelector: &metav1.LabelSelector{MatchLabels: manifestLabels()},
		}},
		Volumes: volumes,
		Containers: []corev1.Container{{
			Name: policyd, Image: o.Image, ImagePullPolicy: corev1.PullIfNotPresent,
			Args:  []string{"--config=" + configFolder + "/" + configFile, "--logging-format=json"},
			Ports: []corev1.ContainerPort{{Name: "https", ContainerPort: httpsPort}, {Name: "metrics", ContainerPort: metricsPort}},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), RunAsNonRoot: new(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
				Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
			},
			ReadinessProbe: probe("/readyz"), LivenessProbe: probe("/healthz"),
			Lifecycle:    &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: int64(drain.Seconds())}}},
			VolumeMounts: mounts,
		}},
	}
}

func probe(path string) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("metrics")}},
		PeriodSeconds: 5, TimeoutSeconds: 2,
	}
}

// volumes returns what the container reads. Secrets are readable for the group of the pod, which is that of its only user.
func (o ManifestOptions) volumes() ([]corev1.Volume, []corev1.VolumeMount) {
	secret := func(name string, optional *bool) corev1.VolumeSource {
		return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, DefaultMode: new(int32(0o440)), Optional: optional}}
	}
	configMap := func(name string, optional *bool) corev1.VolumeSource {
		return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: optional}}
	}
	var policiesOptional *bool // the ConfigMap is not one of the documents
	if o.Policies == nil {
		policiesOptional = new(true)
	}
	var volumes []corev1.Volume
	var mounts []corev1.VolumeMount
	type volume struct {
		name, path string
		source     corev1.VolumeSource
	}
	all := []volume{
		{"config", configFolder, configMap(policyd, nil)},
		{"tls", tlsFolder, secret(tlsSecret, nil)},
		{"policies", policiesFolder, configMap(policiesName, policiesOptional)},
		{"backends", backendsFolder, secret(backendsSecret, new(true))},
	}
	if o.TrustedRoot != nil {
		all = append(all, volume{"trusted-root", rootFolder, configMap(trustedRoot, nil)})
	}
	for _, v := range all {
		volumes = append(volumes, corev1.Volume{Name: v.name, VolumeSource: v.source})
		mounts = append(mounts, corev1.VolumeMount{Name: v.name, MountPath: v.path, ReadOnly: true})
	}
	return volumes, mounts
}

func (o ManifestOptions) disruptionBudget() *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		TypeMeta: metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "PodDisruptionBudget"}, ObjectMeta: o.meta(policyd),
		Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: manifestLabels()}},
	}
}

func (o ManifestOptions) service() *corev1.Service {
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: o.meta(policyd),
		Spec: corev1.ServiceSpec{
			Selector: manifestLabels(),
			Ports:    []corev1.ServicePort{{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString("https")}},
		},
	}
}

func (o ManifestOptions) webhookConfiguration() *admissionregistrationv1.ValidatingWebhookConfiguration {
	m := metaOf(policyd)
	client := admissionregistrationv1.WebhookClientConfig{CABundle: o.CA}
	if o.URL != "" {
		m.Name += diskSuffix
		client.URL = new(o.endpoint())
	} else {
		client.Service = &admissionregistrationv1.ServiceReference{Namespace: o.Namespace, Name: policyd, Path: new(ValidatePath), Port: new(int32(443))}
	}
	w := admissionregistrationv1.ValidatingWebhook{
		Name: webhookName, ClientConfig: client, Rules: o.rules(),
		FailurePolicy: new(admissionregistrationv1.FailurePolicyType(o.FailurePolicy)), MatchPolicy: new(admissionregistrationv1.Equivalent),
		SideEffects: new(admissionregistrationv1.SideEffectClassNone), TimeoutSeconds: new(int32(o.Timeout / time.Second)), //nolint:gosec // G115: at most 30
		AdmissionReviewVersions: []string{"v1"},
	}
	if excluded := o.excluded(); len(excluded) > 0 {
		w.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: excluded},
		}}
	}
	return &admissionregistrationv1.ValidatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: "ValidatingWebhookConfiguration"},
		ObjectMeta: m, Webhooks: []admissionregistrationv1.ValidatingWebhook{w},
	}
}

// rules returns a rule for each API group. Objects of the groups of Kubernetes are requested as v1: the API server converts other versions
// to it.
func (o ManifestOptions) rules() []admissionregistrationv1.RuleWithOperations {
	builtIn := map[schema.GroupResource]bool{}
	for _, r := range Resources(nil) {
		builtIn[r] = true
	}
	var rules []admissionregistrationv1.RuleWithOperations
	for _, r := range Resources(o.Templates) {
		version := "*"
		if builtIn[r] {
			version = "v1"
		}
		if n := len(rules); n > 0 && rules[n-1].APIGroups[0] == r.Group && rules[n-1].APIVersions[0] == version {
			rules[n-1].Resources = append(rules[n-1].Resources, r.Resource)
			continue
		}
		rules = append(rules, admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
			Rule: admissionregistrationv1.Rule{
				APIGroups: []string{r.Group}, APIVersions: []string{version}, Resources: []string{r.Resource},
				Scope: new(admissionregistrationv1.NamespacedScope),
			},
		})
	}
	return rules
}
