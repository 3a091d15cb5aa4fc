"""Passwords behind short flags of programs, and commands that only resemble them."""

import pytest

from berthmaster.lib.requests.command_passwords import password_at, password_in


@pytest.mark.parametrize(
    ("command", "at"),
    [
        ("mysql -u root -phunter2 db", 3),
        ("/usr/bin/mysqldump -proot db", 1),
        ("mariadb-dump -p12345 db", 1),
        ("sudo -u root mysql -phunter2", 4),
        ("env A=1 timeout 5 mysqladmin -phunter2 ping", 5),
        ("A=1 mysql -phunter2", 2),
        ("kubectl exec db-0 -- mysql -phunter2", 5),
        ("docker exec db mysql -phunter2", 4),
        ("sshpass -p hunter2 ssh -p 22 host", 2),
        ("sshpass -phunter2 rsync -p a b", 1),
        ("sshpass -e ssh host mysql -phunter2", 5),
        ("redis-cli -h cache -a hunter2 ping", 4),
        ("mongosh -u ada -p hunter2", 4),
        ("ldapsearch -x -w hunter2", 3),
        ("unzip -P hunter2 data.zip", 2),
        ("7z x -phunter2 data.7z", 2),
        ("docker login -u ada -p hunter2 registry", 5),
        ("helm registry login -p hunter2 registry", 4),
        ("skopeo copy --src-creds=ada:hunter2 a b", 2),
        ("curl -u ada:hunter2 https://host", 2),
        ("curl -fsSuada:hunter2 https://host", 1),
        ("curl --user=ada:hunter2 https://host", 1),
        ("smbclient -U ada%hunter2 //host/share", 2),
        ("openssl rsa -passin pass:hunter2", 3),
    ],
)
def test_password_of_a_program_is_found_in_words_and_in_a_script(command: str, at: int) -> None:
    assert password_at(command.split()) == at
    assert password_in(f"cd /x && {command}; ls")
    assert password_in(f"bash -c '{command}'")
    assert password_in(str(command.split()).replace("'", '"'))


@pytest.mark.parametrize(
    "command",
    [
        *("tar -p -xf a.tar", "tar -cpzf a.tgz mysql", "mkdir -p /data/mysql", "mkdir -pv mysql"),
        *("ssh -p 22 host", "ssh -p 2222 ada@host", "scp -p a host:b", "cp -pr mysql backup"),
        *("psql -p 5432 -U ada", "nc -p 8080", "python -m http.server -p 8080", "ps -p 1234"),
        *("mysql -p", "mysql -p db", "mysql -u root -p db", "mysql -P3306 -h db", "mysql -P 3306"),
        *('mysql -p"$DB_PASS"', "mysql -p${DB_PASS}", "mysql -p$(cat /run/secrets/db)"),
        *(
            "sshpass -e ssh -p 22 host",
            "sshpass -f /run/secret ssh host",
            "sshpass -p $PW ssh host",
        ),
        *("redis-cli -a $REDIS_AUTH", "redis-cli -p 6379", "ls -a hunter2", "mongosh --port 27017"),
        *(
            "docker run -p 8080:80 nginx",
            "docker run -d mysql -p3306:3306",
            "docker run -u app:app x",
        ),
        *(
            "curl -u ada https://host",
            "curl -u ada: https://host",
            "curl -u $USER:$PASS https://host",
        ),
        *(
            "curl -sSL -o a.tgz https://host",
            "curl -Haccept:text/plain https://host",
            "curl -XPUT h",
        ),
        *("unzip -p data.zip a.txt", "7z x -p data.7z", "zip -r a.zip p", "unzip -q -d P data.zip"),
        *(
            "ldapsearch -x -W",
            "ldapsearch -x -y file",
            "openssl rsa -passin env:PW",
            "openssl rand 8",
        ),
        *("pip install mysql -p", "apt-get install -y mysql-client redis", "find . -print"),
        *("docker login --password-stdin", "podman run --name login -p 80:80 x", "az vm list -p x"),
    ],
)
def test_command_without_a_password_is_accepted(command: str) -> None:
    assert password_at(command.replace('"', "").split()) is None
    assert not password_in(f"cd /x && {command}; ls")
